CREATE SCHEMA leasehold_bench
CREATE TABLE ledger (job bigint NOT NULL, entry text NOT NULL)
