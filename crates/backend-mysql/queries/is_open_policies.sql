-- As `is_open.sql`. Also reads for `complete.sql` whether there is a policy. It is a plain read: an INSERT or a SET that reads the policies locks
-- them at REPEATABLE READ, and `pause` would wait for the user's commit.
SET @leasehold_has_policies = NULL;
SET @leasehold_fit = (CASE WHEN @@autocommit = 1
    AND @@character_set_client = 'utf8mb4' AND @@character_set_connection = 'utf8mb4'
    AND COALESCE(@@character_set_results, 'binary') IN ('utf8mb4', 'binary') THEN 1 ELSE (SELECT 1 UNION SELECT 2) END);
SAVEPOINT leasehold_is_open;
RELEASE SAVEPOINT leasehold_is_open;
SELECT EXISTS (SELECT 1 FROM {prefix}job_queue_config) INTO @leasehold_has_policies
