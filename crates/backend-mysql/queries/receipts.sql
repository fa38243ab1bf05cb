-- What is known of each receipt's job, wherever it is (G5).
SELECT CAST(i.place AS SIGNED), j.lease_epoch, j.lease_until, h.lease_epoch, h.status_final
FROM JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) i
LEFT JOIN {prefix}job_queue j ON j.id = i.id
LEFT JOIN {prefix}job_history h ON h.id = i.id
