INSERT INTO ledger (job, entry) VALUES (?1, 'done')
