-- Queues that may have leases that have passed, or jobs whose attempts are spent.
return redis.call('ZRANGEBYSCORE', shard .. ':leases', '-inf', now, 'LIMIT', 0, number())
