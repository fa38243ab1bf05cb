-- KEYS: what all keys begin with. ARGV: how many.
local base = KEYS[1]
local time = redis.call('TIME')
local now = string.format('%012d%06d', time[1], time[2])
local lease_until = string.format('%012d%06d', time[1] + 60, time[2])
local ready = redis.call('ZRANGE', base .. ':ready', 0, ARGV[1] - 1)
if #ready == 0 then
    return {}
end
local jobs, due, leased = {}, {}, {}
for place, member in ipairs(ready) do
    local id = string.sub(member, 29)
    local key = base .. ':' .. id
    redis.call('HINCRBY', key, 'attempts', 1)
    redis.call('HINCRBY', key, 'epoch', 1)
    redis.call('HSET', key, 'lease_until', lease_until, 'worker', 'bench', 'first_leased_at', now, 'updated_at', now)
    jobs[place] = { id, redis.call('HGETALL', key) }
    due[place] = string.sub(member, 11)
    leased[#leased + 1] = 0
    leased[#leased + 1] = lease_until .. id
end
redis.call('ZREM', base .. ':ready', unpack(ready))
redis.call('ZREM', base .. ':due', unpack(due))
redis.call('ZADD', base .. ':leased', unpack(leased))
redis.call('PUBLISH', base .. ':events', #jobs)
return jobs
