SELECT id, customer, cents, day FROM orders WHERE id = CAST(:'id' AS bigint);
