-- Makes a waiting job available now, and leaves every other as it is (A3).
UPDATE {prefix}job_queue SET available_at = ?, updated_at = ?
WHERE id = ? AND lease_until IS NULL AND attempts < max_attempts AND available_at > ?
