-- Forgets finished jobs of queues of one shard, from the longest ago in each: those of these statuses that ended so long ago.
-- Looks at so many, from a queue and a place in it on; the answer is how many were forgotten, and where to go on: at no queue
-- if that was all.
local limit, looks, start, from = number(), number(), number(), arg()
local statuses = {}
for _ = 1, number() do
    statuses[arg()] = true
end

-- The last member of `ended` that is old enough.
local function latest(age)
    local seconds = tonumber(string.sub(now, 1, 12)) - math.ceil(age / 1000000)
    if seconds < 0 then
        return '[000000000000000000~'
    end
    local time = later(string.format('%012d', seconds) .. string.sub(now, 13), math.ceil(age / 1000000) * 1000000 - age)
    return '[' .. time .. '~'
end

local forgotten = 0
local function prune(base, age)
    local page = redis.call('ZRANGEBYLEX', base .. ':ended', from == '' and '-' or '(' .. from, latest(age), 'LIMIT', 0, looks)
    for _, member in ipairs(page) do
        if forgotten >= limit then
            return
        end
        from, looks = member, looks - 1
        local id = string.sub(member, 19)
        if statuses[redis.call('HGET', base .. ':' .. id, 'status')] then
            redis.call('DEL', base .. ':' .. id)
            thinned[base] = true
            remove(base, ':ended', member)
            remove(base, ':history', id)
            remove(base, ':dead', id)
            forgotten = forgotten + 1
        end
    end
end

local at = 0
for index = 1, queue_count do
    local age = number() -- none if they are kept for ever (U3)
    if age and index >= start and at == 0 then
        prune(queue(index), age)
        if looks == 0 or forgotten >= limit then
            at = index
        else
            from = ''
        end
    end
end
conclude()
return { forgotten, at, from }
