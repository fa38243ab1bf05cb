-- Asks whether a user's transaction is open and its session is fit, in one message. An error is the answer: 1305, if there is no transaction
-- that could keep the savepoint (T4); 1242, if text would be changed on its way (E9), or `autocommit` is 0: then every statement opens a
-- transaction, and the savepoint proves nothing. MariaDB ignores errors of `DO`.
SET @leasehold_fit = (CASE WHEN @@autocommit = 1
    AND @@character_set_client = 'utf8mb4' AND @@character_set_connection = 'utf8mb4'
    AND COALESCE(@@character_set_results, 'binary') IN ('utf8mb4', 'binary') THEN 1 ELSE (SELECT 1 UNION SELECT 2) END);
SAVEPOINT leasehold_is_open;
RELEASE SAVEPOINT leasehold_is_open
