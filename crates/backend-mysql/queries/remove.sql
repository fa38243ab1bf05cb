-- Removes jobs from the queue, in the transaction that has written their history. Without a second condition both servers walk all
-- over a small table whatever index is named, and wait for what others have locked there.
DELETE j FROM {prefix}job_queue j FORCE INDEX (PRIMARY) WHERE j.id IN ({list}) AND j.lease_epoch >= 0
