-- For the administrator of the database, once: a role that reads one table. Its settings hold in each of its sessions. The rights
-- are what keeps it from writing. It may set the variables differently, and no definition does.
CREATE ROLE orders_reader LOGIN PASSWORD :'password' NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT CONNECTION LIMIT 8;
ALTER ROLE orders_reader SET default_transaction_read_only = on;
ALTER ROLE orders_reader SET statement_timeout = '10s';
GRANT SELECT ON orders TO orders_reader;
