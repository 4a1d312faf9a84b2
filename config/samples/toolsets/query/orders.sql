-- :'name' is the value as one literal of SQL, quoted by psql. Never :name, which puts the text into the statement as it is.
SELECT id, customer, cents, day FROM orders WHERE customer = :'customer' ORDER BY id DESC LIMIT CAST(:'rows' AS integer);
