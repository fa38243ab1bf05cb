-- Accepts jobs: all of them, since a script is not interrupted (E1). They have reserved numbers in the sequence of each of their shards, or
-- they are all of this shard, and the numbers are taken here. What jobs have in common comes first, once for all that share it. The answer
-- has the place before the first, the numbers of the queues, and for jobs that were there already which they are: the
-- other ids follow from these.

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

local shards, place_of_shard, shape_count, jobs = number(), number(), number(), number()
local floor = number() -- none if numbers were reserved
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
local shapes = {}
for index = 1, shape_count do
    local at, kind, priority, headers, max_attempts = number(), arg(), arg(), arg(), arg()
    local available_at = schedule()
    local base = queue(at)
    shapes[index] = {
        base = base, kind = kind, priority = priority, headers = headers, max_attempts = max_attempts,
        available_at = available_at, id = string.format('%06d', numbers[at]), keyed = arg() == '1',
        rank = rank(priority, available_at, ''), live = changes(base, ':live').added,
        ready = changes(base, ':ready').added, due = changes(base, ':due').added,
    }
end
local sequence = floor and sequence_from(floor)
if sequence then
    sequence_to(sequence + jobs)
end
local known = {}
for index = 1, jobs do
    local shape = shapes[number()]
    local id = string.format('%013.0f', sequence and sequence + index or arg()) .. shape.id -- E10
    local base, available_at = shape.base, shape.available_at
    local unique_key = shape.keyed and arg()
    local payload = arg()
    local winner = unique_key and redis.call('HGET', base .. ':unique', unique_key)
    if winner then
        known[#known + 1] = { index, winner } -- E3, E4
    else
        local key = base .. ':' .. id
        redis.call('HSET', key, 'kind', shape.kind, 'priority', shape.priority, 'payload', payload, 'headers', shape.headers,
            'attempts', 0, 'max_attempts', shape.max_attempts, 'available_at', available_at, 'epoch', 0, 'redrives', 0,
            'created_at', now, 'updated_at', now) -- E11
        if unique_key then
            redis.call('HSET', key, 'unique_key', unique_key)
            redis.call('HSET', base .. ':unique', unique_key, id)
        end
        if not shape.is_awaited then
            await(base, available_at)
            shape.is_awaited = true
        end
        push(shape.live, id)
        push(shape.ready, shape.rank .. id)
        push(shape.due, available_at .. id)
        tell('enqueued', base, id)
    end
end
conclude()
return { string.format('%.0f', sequence or 0), numbers, known }
