-- In which queues something became leasable: written in the transaction that did it, read by the other processes after its commit, for the hints of
-- their workers. `name` is the name of a queue, or a prefix with a star at its end. Old rows are deleted; the newest one always stays, so that
-- `seq` rises. Programs of older versions write none.
CREATE TABLE {prefix}job_hint (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL
) STRICT;
