-- KEYS: what all keys begin with. ARGV: the ids.
local base = KEYS[1]
local time = redis.call('TIME')
local now = string.format('%012d%06d', time[1], time[2])
local leased, history, ended = {}, {}, {}
for place, id in ipairs(ARGV) do
    local key = base .. ':' .. id
    leased[place] = redis.call('HGET', key, 'lease_until') .. id
    redis.call('HSET', key, 'status', 'completed', 'finished_at', now, 'document', 'null')
    history[#history + 1] = 0
    history[#history + 1] = id
    ended[#ended + 1] = 0
    ended[#ended + 1] = now .. id
end
local settled = redis.call('ZREM', base .. ':leased', unpack(leased))
redis.call('ZREM', base .. ':live', unpack(ARGV))
redis.call('ZADD', base .. ':history', unpack(history))
redis.call('ZADD', base .. ':ended', unpack(ended))
redis.call('PUBLISH', base .. ':events', #ARGV)
return settled
