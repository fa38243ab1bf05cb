-- KEYS: what all keys begin with. ARGV: the ids.
local time = redis.call('TIME')
local history = {}
for _, id in ipairs(ARGV) do
    redis.call('HSET', KEYS[1] .. ':' .. id, 'status', 'completed', 'finished_at', time[1], 'result', 'null')
    history[#history + 1] = time[1]
    history[#history + 1] = id
end
local settled = redis.call('ZREM', KEYS[1] .. ':leased', unpack(ARGV))
redis.call('ZADD', KEYS[1] .. ':history', unpack(history))
return settled
