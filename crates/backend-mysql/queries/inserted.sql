-- The first id of the last INSERT on this connection, and how far apart its ids are.
SELECT CAST(LAST_INSERT_ID() AS SIGNED), CAST(@@auto_increment_increment AS SIGNED)
