-- What every script begins with. ARGV: the channel of events, the shift of the clock in microseconds, until when by the server's clock the caller
-- waits for the answer (nothing if the script only looks), the stamp of the shard that the caller knows; KEYS: what the keys of the shard begin with,
-- then the same of queues of that shard.
-- Times are text of 18 digits, 12 of seconds and 6 of microseconds, which sorts as time does; ids are 19 digits.
-- A number of Lua could not keep either exactly.
local place = 0
local function arg()
    place = place + 1
    return ARGV[place]
end
local function number()
    return tonumber(arg())
end

local function later(time, micros)
    local sum = tonumber(string.sub(time, 13)) + micros
    local carry = math.floor(sum / 1000000)
    local seconds = tonumber(string.sub(time, 1, 12)) + carry
    if seconds > 253402300799 then
        return '253402300799999999'
    end
    return string.format('%012d%06d', seconds, sum - carry * 1000000)
end

local channel = arg()
local clock = redis.call('TIME')
local now = later(string.format('%012d%06d', clock[1], clock[2]), number())
local shard = KEYS[1]
-- A server that was stopped or paused runs what it was sent before, and nobody waits for that any more.
local deadline = number()
if deadline and clock[1] * 1000000 + clock[2] > deadline then
    return redis.error_reply('LATE ' .. string.format('%.0f', clock[1] * 1000000 + clock[2]))
end
if redis.call('GET', shard .. ':stamp') ~= arg() then
    return false
end
local queue_count = #KEYS - 1
local function queue(index)
    return KEYS[1 + index]
end
local function name_of(base)
    return string.sub(base, #shard + 2)
end

-- What happened is told in one message, in order, when all of it has happened: under each queue, what and to which job.
local news, news_of = {}, nil
local function tell(kind, base, id)
    if base ~= news_of then
        news[#news + 1] = 'in ' .. name_of(base)
        news_of = base
    end
    news[#news + 1] = kind .. ' ' .. id
end

-- Queues whose waiting jobs are others than before, queues that have lost a lease, and queues that have lost a job for good.
local touched, released, thinned = {}, {}, {}

-- Changes of the sorted sets and counts of queues are collected, and made all at once: what is removed first, then what is
-- added. No script may add a member and remove it afterwards.
local sets, counts = {}, {}
local function changes(base, set)
    local of = sets[base]
    if not of then
        of = {}
        sets[base] = of
    end
    local both = of[set]
    if not both then
        both = { removed = {}, added = {} }
        of[set] = both
    end
    return both
end
local function remove(base, set, member)
    local removed = changes(base, set).removed
    removed[#removed + 1] = member
end
local function push(added, member)
    local count = #added
    added[count + 1] = 0
    added[count + 2] = member
end
local function add(base, set, member)
    push(changes(base, set).added, member)
end
local function flush()
    for base, of in pairs(sets) do
        for set, both in pairs(of) do
            for from = 1, #both.removed, 4000 do
                redis.call('ZREM', base .. set, unpack(both.removed, from, math.min(from + 3999, #both.removed)))
            end
            for from = 1, #both.added, 4000 do
                redis.call('ZADD', base .. set, unpack(both.added, from, math.min(from + 3999, #both.added)))
            end
        end
    end
    for base, by in pairs(counts) do
        for attempts, sum in pairs(by) do
            if sum ~= 0 then
                redis.call('HINCRBY', base .. ':attempts', attempts, sum)
            end
        end
    end
    sets, counts = {}, {}
end

-- The indexes of the shard: `active` has the queues with a job that is due, by name; `later` those whose first job is due
-- only later, by its time; `leases` those with leases, by a time before which none of them passes.
local function activate(name)
    if redis.call('ZADD', shard .. ':active', 0, name) == 1 then
        redis.call('ZREM', shard .. ':later', name)
    end
end
local function index(base)
    local name = name_of(base)
    local first = redis.call('ZRANGE', base .. ':due', 0, 0)[1]
    local at = first and string.sub(first, 1, 18)
    if at and at <= now then
        activate(name)
    else
        redis.call('ZREM', shard .. ':active', name)
        if at then
            redis.call('ZADD', shard .. ':later', at, name)
        else
            redis.call('ZREM', shard .. ':later', name)
        end
    end
end
local function watch_lease(base, at)
    redis.call('ZADD', shard .. ':leases', 'LT', at, name_of(base))
end

-- A queue that has neither live jobs nor history is forgotten. Its bucket, if it has one, expires.
local function forget_if_empty(base)
    if redis.call('EXISTS', base .. ':live', base .. ':history') > 0 then
        return
    end
    local name = name_of(base)
    local number = redis.call('HGET', shard .. ':numbers', name)
    if number then
        redis.call('HDEL', shard .. ':numbers', name)
        redis.call('HDEL', shard .. ':names', number)
        redis.call('LPUSH', shard .. ':freed', number)
    end
    redis.call('ZREM', shard .. ':queues', name)
    redis.call('ZREM', shard .. ':leases', name)
    redis.call('DEL', base .. ':attempts')
end

-- The last step of every script that changes something. Nobody's permission to publish must be asked when it is too late.
local function conclude()
    flush()
    local woken, members = {}, {}
    for base, anew in pairs(touched) do
        if anew then
            index(base)
        else
            woken[#woken + 1] = name_of(base)
            push(members, woken[#woken])
        end
    end
    for from = 1, #woken, 2000 do
        local to = math.min(from + 1999, #woken)
        if redis.call('ZADD', shard .. ':active', unpack(members, 2 * from - 1, 2 * to)) > 0 then
            redis.call('ZREM', shard .. ':later', unpack(woken, from, to))
        end
    end
    for base in pairs(released) do
        if redis.call('EXISTS', base .. ':leased', base .. ':spent') == 0 then
            redis.call('ZREM', shard .. ':leases', name_of(base))
        end
    end
    for base in pairs(thinned) do
        forget_if_empty(base)
    end
    if #news > 0 then
        redis.pcall('PUBLISH', channel, now .. '\n' .. table.concat(news, '\n'))
    end
end

-- Counts the live jobs by attempts, but for those that have spent none: they are the rest.
local function count(base, attempts, by)
    if attempts > 0 then
        counts[base] = counts[base] or {}
        counts[base][attempts] = (counts[base][attempts] or 0) + by
    end
end

-- A time, given as nothing, a delay or a time: one in the past means now (E8).
local function schedule()
    local mode, value = arg(), arg()
    if mode == 'after' then
        return later(now, tonumber(value))
    elseif mode == 'at' and value > now then
        return value
    end
    return now
end

-- The place of a waiting job in its queue: by priority from high to low, then by time, then by id (D6).
local function rank(priority, available_at, id)
    return string.format('%010d', 2147483647 - tonumber(priority)) .. available_at .. id
end

-- A job that waits is in `ready` by rank and in `due` by time, and if it was tried before in `retried` by time.
local function await(base, available_at)
    if available_at > now then
        touched[base] = true
    elseif touched[base] == nil then
        touched[base] = false -- one more is due: that is all to know
    end
end
local function place_waiting(base, member, attempts)
    local by_time = string.sub(member, 11)
    await(base, string.sub(by_time, 1, 18))
    add(base, ':ready', member)
    add(base, ':due', by_time)
    if attempts > 0 then
        add(base, ':retried', by_time)
    end
end
local function remove_waiting(base, member, attempts)
    touched[base] = true
    local by_time = string.sub(member, 11)
    remove(base, ':ready', member)
    remove(base, ':due', by_time)
    if attempts > 0 then
        remove(base, ':retried', by_time)
    end
end

-- Puts a live job without a lease where it will be found.
local function wait(base, id, job)
    if job.attempts >= job.max_attempts then
        add(base, ':spent', id)
        watch_lease(base, 0)
    else
        place_waiting(base, rank(job.priority, job.available_at, id), job.attempts)
    end
end

