-- Forgets finished jobs of one queue, from the longest ago: those of these statuses that ended so long ago. Looks at so
-- many from a place on; the answer is how many were forgotten, and where to go on, if anywhere.
local base, limit, looks, from, age = queue(1), number(), number(), arg(), number()
local statuses = {}
for _ = 1, number() do
    statuses[arg()] = true
end
local seconds = tonumber(string.sub(now, 1, 12)) - math.ceil(age / 1000000)
local latest = '000000000000000000'
if seconds >= 0 then
    latest = later(string.format('%012d', seconds) .. string.sub(now, 13), math.ceil(age / 1000000) * 1000000 - age)
end
local page = redis.call('ZRANGEBYLEX', base .. ':ended', from == '' and '-' or '(' .. from, '[' .. latest .. '~',
    'LIMIT', 0, looks)
local forgotten, last = 0, ''
for _, member in ipairs(page) do
    if forgotten >= limit then
        break
    end
    last = member
    local id = string.sub(member, 19)
    if statuses[redis.call('HGET', base .. ':' .. id, 'status')] then
        redis.call('DEL', base .. ':' .. id)
        redis.call('ZREM', base .. ':ended', member)
        redis.call('ZREM', base .. ':history', id)
        redis.call('ZREM', base .. ':dead', id)
        forgotten = forgotten + 1
    end
end
return { forgotten, #page < looks and '' or last }
