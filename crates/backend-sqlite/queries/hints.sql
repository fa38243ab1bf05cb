-- The hints from this one on.
SELECT seq, name FROM {prefix}job_hint WHERE seq >= ?1 ORDER BY seq
