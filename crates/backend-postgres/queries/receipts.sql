-- What is known of each receipt's job, wherever it is (G5).
SELECT i.ord, j.lease_epoch AS live_epoch, j.lease_until, h.lease_epoch AS final_epoch, h.status_final
FROM pg_catalog.unnest($1::bigint[]) WITH ORDINALITY AS i (id, ord)
LEFT JOIN {schema}.job_queue j ON j.id = i.id
LEFT JOIN {schema}.job_history h ON h.id = i.id
