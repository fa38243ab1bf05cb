-- Accepts jobs: all of them, since a script is not interrupted (E1). They have reserved numbers in the sequence of each of their shards, or
-- they are all of this shard, and the numbers are taken here. What jobs have in common comes first, once for all that share it. The answer
-- has the place before the first, the numbers of the queues, and for jobs that were there already which they are: the
-- other ids follow from these.

-- A number of a queue that is forgotten, if there is one. What anybody knows of them is wrong then, so that the stamp changes.
local function used_number()
    local number = redis.call('RPOP', shard .. ':reusable')
    if not number and redis.call('EXISTS', shard .. ':freed') == 1 then
        redis.call('RENAME', shard .. ':freed', shard .. ':reusable')
        number = redis.call('RPOP', shard .. ':reusable')
        local stamp = redis.call('GET', shard .. ':stamp')
        local head, generation = string.match(stamp, '^(.* )(%d+)$')
        redis.call('SET', shard .. ':stamp', head .. string.format('%.0f', generation + 1))
    end
    return number
end

-- The numbers of all queues. Each gets one with its first job; those of forgotten queues are given again when there are no others. The other answers:
-- whether there were enough, and which queues have got theirs now.
local function register(shards, place)
    local numbers, names, fresh = {}, {}, {}
    for index = 1, queue_count do
        names[index] = name_of(queue(index))
    end
    for from = 1, queue_count, 4000 do
        local known = redis.call('HMGET', shard .. ':numbers', unpack(names, from, math.min(from + 3999, queue_count)))
        for at = 1, #known do
            numbers[from + at - 1] = known[at]
            if not known[at] then
                fresh[#fresh + 1] = from + at - 1
            end
        end
    end
    if #fresh == 0 then
        return numbers, true, {}
    end
    local last = tonumber(redis.call('GET', shard .. ':next') or 0)
    local unused = math.max(0, math.min(#fresh, math.floor((999999 - place) / shards) - last))
    if unused > 0 then
        redis.call('INCRBY', shard .. ':next', unused)
    end
    local by_name, by_number, added, is_fresh = {}, {}, {}, {}
    for at, index in ipairs(fresh) do
        local number = at <= unused and string.format('%.0f', (last + at) * shards + place) or used_number()
        if number then
            numbers[index], is_fresh[index] = number, true
            by_name[2 * at - 1], by_name[2 * at] = names[index], number
            by_number[2 * at - 1], by_number[2 * at] = number, names[index]
            push(added, names[index])
        end
    end
    for from = 1, #added, 4000 do
        local to = math.min(from + 3999, #added)
        redis.call('HSET', shard .. ':numbers', unpack(by_name, from, to))
        redis.call('HSET', shard .. ':names', unpack(by_number, from, to))
        redis.call('ZADD', shard .. ':queues', unpack(added, from, to))
    end
    return numbers, #added == 2 * #fresh, is_fresh
end

local shards, place_of_shard, shape_count, jobs = number(), number(), number(), number()
local floor = number() -- none if numbers were reserved
local left = arg() -- how the keys of the payloads begin, nothing if they are given here
for from = 1, left == '' and 0 or jobs, 4000 do
    local keys = {}
    for index = from, math.min(from + 3999, jobs) do
        keys[#keys + 1] = left .. index
    end
    if redis.call('EXISTS', unpack(keys)) < #keys then
        return redis.error_reply('GONE the payloads were not kept for so long')
    end
end
local numbers, are_enough, is_fresh = register(shards, place_of_shard)
if not are_enough then
    for index = 1, queue_count do
        thinned[queue(index)] = true
    end
    conclude()
    return redis.error_reply('FULL there are as many queues as can be at once')
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
local sequence = floor and sequence_from(floor, is_fresh)
if sequence then
    sequence_to(sequence + jobs)
end
local known = {}
for index = 1, jobs do
    local shape = shapes[number()]
    local id = string.format('%013.0f', sequence and sequence + index or arg()) .. shape.id -- E10
    local base, available_at = shape.base, shape.available_at
    local unique_key = shape.keyed and arg()
    local payload = left == '' and arg()
    local winner = unique_key and redis.call('HGET', base .. ':unique', unique_key)
    if winner then
        known[#known + 1] = { index, winner } -- E3, E4
        if not payload then
            redis.call('UNLINK', left .. index)
        end
    else
        local key = base .. ':' .. id
        if not payload then
            redis.call('RENAME', left .. index, key)
            redis.call('PERSIST', key)
        end
        -- One command for all fields. The last pair is the payload, or repeats another if that is there already.
        redis.call('HSET', key, 'kind', shape.kind, 'priority', shape.priority, 'headers', shape.headers, 'attempts', 0,
            'max_attempts', shape.max_attempts, 'available_at', available_at, 'epoch', 0, 'redrives', 0, 'created_at', now,
            'updated_at', now, payload and 'payload' or 'epoch', payload or 0) -- E11
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
