-- Accepts jobs: all of them, since a script is not interrupted (E1). They have reserved places in the sequence of all jobs, or
-- there is but one shard and the places are taken here. Each answer is an id, and whether it is that of a job that was there
-- already.

-- The number of a queue, which it gets with its first job. Numbers of forgotten queues are given again when there are no
-- others; what anybody knows of them is wrong then, so that the stamp changes.
local function register(base, shards, place)
    local name = name_of(base)
    local number = redis.call('HGET', shard .. ':numbers', name)
    if number then
        return number
    end
    if tonumber(redis.call('GET', shard .. ':next') or 0) < math.floor((999999 - place) / shards) then
        number = redis.call('INCR', shard .. ':next') * shards + place
    else
        number = redis.call('RPOP', shard .. ':reusable')
        if not number and redis.call('EXISTS', shard .. ':freed') == 1 then
            redis.call('RENAME', shard .. ':freed', shard .. ':reusable')
            number = redis.call('RPOP', shard .. ':reusable')
            local stamp = redis.call('GET', shard .. ':stamp')
            local head, generation = string.match(stamp, '^(.* )(%d+)$')
            redis.call('SET', shard .. ':stamp', head .. string.format('%.0f', generation + 1))
        end
    end
    if number then
        redis.call('HSET', shard .. ':numbers', name, number)
        redis.call('HSET', shard .. ':names', number, name)
        redis.call('ZADD', shard .. ':queues', 0, name)
    end
    return number
end

local shards, place_of_shard, jobs = number(), number(), number()
local numbers = {}
for index = 1, queue_count do
    numbers[index] = register(queue(index), shards, place_of_shard)
    if not numbers[index] then
        for registered = 1, index - 1 do
            thinned[queue(registered)] = true
        end
        conclude()
        return redis.error_reply('FULL there are as many queues as can be at once')
    end
end
local sequence = shards == 1 and redis.call('INCRBY', shard .. ':sequence', jobs) - jobs
local answers = {}
for index = 1, jobs do
    local at, place_in_sequence, kind, priority = number(), arg(), arg(), arg()
    local base = queue(at)
    local id = string.format('%013.0f%06d', sequence and sequence + index or place_in_sequence, numbers[at]) -- E10
    local unique_key, payload, headers, max_attempts = arg(), arg(), arg(), arg()
    local available_at = schedule()
    local winner = unique_key ~= '' and redis.call('HGET', base .. ':unique', unique_key)
    if winner then
        answers[index] = { winner, 1 } -- E3, E4
    else
        answers[index] = { id, 0 }
        local key = base .. ':' .. id
        redis.call('HSET', key, 'kind', kind, 'priority', priority, 'payload', payload, 'headers', headers,
            'attempts', 0, 'max_attempts', max_attempts, 'available_at', available_at, 'epoch', 0, 'redrives', 0,
            'created_at', now, 'updated_at', now) -- E11
        if unique_key ~= '' then
            redis.call('HSET', key, 'unique_key', unique_key)
            redis.call('HSET', base .. ':unique', unique_key, id)
        end
        add(base, ':live', id)
        wait(base, id, { priority = priority, available_at = available_at, attempts = 0, max_attempts = 1 })
        tell('enqueued', base, id)
    end
end
conclude()
return answers
