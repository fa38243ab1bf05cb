-- Queues whose time has come while nobody looked; so many at most. Whether there may be more.
local function awake()
    local due = redis.call('ZRANGEBYSCORE', shard .. ':later', '-inf', now, 'LIMIT', 0, 500)
    for _, name in ipairs(due) do
        redis.call('ZADD', shard .. ':active', 0, name)
        redis.call('ZREM', shard .. ':later', name)
    end
    return #due == 500
end
