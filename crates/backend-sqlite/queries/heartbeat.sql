-- Extends a lease that is still live; never shortens one (H2, H3, H4, H6).
UPDATE {prefix}job_queue SET lease_until = max(lease_until, ?3), updated_at = ?4
WHERE id = ?1 AND lease_epoch = ?2 AND lease_until > ?4
RETURNING lease_until
