-- KEYS: what all keys begin with. ARGV: how many, the payload.
local time = redis.call('TIME')
local last = redis.call('INCRBY', KEYS[1] .. ':sequence', ARGV[1])
local ready = {}
for id = last - ARGV[1] + 1, last do
    redis.call('HSET', KEYS[1] .. ':' .. id, 'kind', 'bench', 'priority', 0, 'payload', ARGV[2], 'headers', '{}', 'attempts', 0,
        'max_attempts', 5, 'available_at', time[1], 'created_at', time[1])
    ready[#ready + 1] = id
    ready[#ready + 1] = id
end
redis.call('ZADD', KEYS[1] .. ':ready', unpack(ready))
redis.call('PUBLISH', KEYS[1] .. ':events', last)
return last
