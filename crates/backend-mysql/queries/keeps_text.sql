-- Whether text is stored and read as it is sent (E9).
SELECT CAST(@@character_set_client = 'utf8mb4' AND @@character_set_connection = 'utf8mb4'
    AND COALESCE(@@character_set_results, 'binary') IN ('utf8mb4', 'binary') AS SIGNED)
