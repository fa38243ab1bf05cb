-- KEYS: what all keys begin with. ARGV: how many.
local time = redis.call('TIME')
local ids = redis.call('ZRANGE', KEYS[1] .. ':ready', 0, ARGV[1] - 1)
if #ids == 0 then
    return {}
end
redis.call('ZREM', KEYS[1] .. ':ready', unpack(ids))
local jobs, leased = {}, {}
for place, id in ipairs(ids) do
    local key = KEYS[1] .. ':' .. id
    redis.call('HINCRBY', key, 'attempts', 1)
    redis.call('HSET', key, 'lease_until', time[1] + 60, 'worker', 'bench')
    jobs[place] = { id, redis.call('HMGET', key, 'kind', 'payload', 'headers', 'attempts', 'max_attempts') }
    leased[#leased + 1] = time[1] + 60
    leased[#leased + 1] = id
end
redis.call('ZADD', KEYS[1] .. ':leased', unpack(leased))
return jobs
