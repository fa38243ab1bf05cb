-- KEYS: what all keys begin with. ARGV: how many, the payload.
local base = KEYS[1]
local time = redis.call('TIME')
local now = string.format('%012d%06d', time[1], time[2])
local last = redis.call('INCRBY', base .. ':sequence', ARGV[1])
local live, ready, due = {}, {}, {}
for number = last - ARGV[1] + 1, last do
    local id = string.format('%019.0f', number)
    redis.call('HSET', base .. ':' .. id, 'kind', 'bench', 'priority', 0, 'payload', ARGV[2], 'headers', '{}', 'attempts', 0,
        'max_attempts', 5, 'available_at', now, 'epoch', 0, 'redrives', 0, 'created_at', now, 'updated_at', now)
    live[#live + 1] = 0
    live[#live + 1] = id
    ready[#ready + 1] = 0
    ready[#ready + 1] = '2147483647' .. now .. id
    due[#due + 1] = 0
    due[#due + 1] = now .. id
end
redis.call('ZADD', base .. ':live', unpack(live))
redis.call('ZADD', base .. ':ready', unpack(ready))
redis.call('ZADD', base .. ':due', unpack(due))
redis.call('PUBLISH', base .. ':events', last)
return last
