-- What every script begins with. ARGV: the channel of events, the shift of the clock in microseconds, the stamp of the shard
-- that the caller knows; KEYS: what the keys of the shard begin with, then the same of queues of that shard.
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

-- Microseconds from one time to another, nothing if it is not later.
local function between(from, to)
    local seconds = tonumber(string.sub(to, 1, 12)) - tonumber(string.sub(from, 1, 12))
    return math.max(0, seconds * 1000000 + tonumber(string.sub(to, 13)) - tonumber(string.sub(from, 13)))
end

local channel = arg()
local clock = redis.call('TIME')
local now = later(string.format('%012d%06d', clock[1], clock[2]), number())
local shard = KEYS[1]
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

-- Queues whose waiting jobs are others than before, and queues that have lost a job for good.
local touched, thinned = {}, {}

-- Changes of sorted sets and counts are collected, and made all at once: the last word on each member holds.
local changes, counts = {}, {}
local function put(key, member, there)
    local members = changes[key]
    if not members then
        members = {}
        changes[key] = members
    end
    members[member] = there
end
local function some(key, words, command)
    if #words > 0 then
        redis.call(command, key, unpack(words))
    end
end
local function flush()
    for key, members in pairs(changes) do
        local adds, removes = {}, {}
        for member, there in pairs(members) do
            if there then
                adds[#adds + 1], adds[#adds + 2] = 0, member
            else
                removes[#removes + 1] = member
            end
            if #adds >= 2000 then
                some(key, adds, 'ZADD')
                adds = {}
            elseif #removes >= 2000 then
                some(key, removes, 'ZREM')
                removes = {}
            end
        end
        some(key, adds, 'ZADD')
        some(key, removes, 'ZREM')
    end
    for key, by in pairs(counts) do
        for attempts, sum in pairs(by) do
            if sum ~= 0 then
                redis.call('HINCRBY', key, attempts, sum)
            end
        end
    end
    changes, counts = {}, {}
end

-- The indexes of the shard: `active` has the queues with a job that is due, by name; `later` those whose first job is due
-- only later, by its time; `leases` those with leases, by a time before which none of them passes.
local function index(base)
    local name = name_of(base)
    local first = redis.call('ZRANGE', base .. ':due', 0, 0)[1]
    local at = first and string.sub(first, 1, 18)
    if at and at <= now then
        if redis.call('ZADD', shard .. ':active', 0, name) == 1 then
            redis.call('ZREM', shard .. ':later', name)
        end
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

-- Queues whose time has come while nobody looked; so many at most. Whether there may be more.
local function awake()
    local due = redis.call('ZRANGEBYSCORE', shard .. ':later', '-inf', now, 'LIMIT', 0, 500)
    for _, name in ipairs(due) do
        redis.call('ZADD', shard .. ':active', 0, name)
        redis.call('ZREM', shard .. ':later', name)
    end
    return #due == 500
end

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
    for base in pairs(touched) do
        index(base)
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
        local key = base .. ':attempts'
        counts[key] = counts[key] or {}
        counts[key][attempts] = (counts[key][attempts] or 0) + by
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
local function place_waiting(base, member, attempts, there)
    touched[base] = true
    put(base .. ':ready', member, there)
    put(base .. ':due', string.sub(member, 11), there)
    if attempts > 0 then
        put(base .. ':retried', string.sub(member, 11), there)
    end
end

-- Takes a live job out of the indexes that it is in.
local function unplace(base, id, job)
    if job.lease_until then
        put(base .. ':leased', job.lease_until .. id, false)
    elseif job.attempts >= job.max_attempts then
        put(base .. ':spent', id, false)
    else
        place_waiting(base, rank(job.priority, job.available_at, id), job.attempts, false)
    end
end

-- Puts a live job without a lease where it will be found.
local function wait(base, id, job)
    if job.attempts >= job.max_attempts then
        put(base .. ':spent', id, true)
        watch_lease(base, 0)
    else
        place_waiting(base, rank(job.priority, job.available_at, id), job.attempts, true)
    end
end

-- A live job, as far as scripts need to know it; nothing if it is not live, or if a stranger has spoilt it.
local function live(base, id)
    local key = base .. ':' .. id
    local row = redis.call('HMGET', key, 'status', 'lease_until', 'epoch', 'attempts', 'max_attempts', 'priority',
        'available_at', 'unique_key', 'worker', 'kind')
    local attempts, max_attempts = tonumber(row[4]), tonumber(row[5])
    local whole = attempts and max_attempts and tonumber(row[6]) and row[7] and #row[7] == 18
    if row[1] or not whole then
        return nil, row[1]
    end
    return {
        key = key, lease_until = row[2] or nil, epoch = row[3], attempts = attempts,
        max_attempts = max_attempts, priority = row[6], available_at = row[7], unique_key = row[8] or nil,
        worker = row[9] or nil, kind = row[10],
    }
end

-- Puts a live job back without its lease.
local function requeue(base, id, job, available_at, attempts)
    unplace(base, id, job)
    if attempts ~= job.attempts then
        count(base, job.attempts, -1)
        count(base, attempts, 1)
    end
    job.lease_until, job.available_at, job.attempts = nil, available_at, attempts
    redis.call('HDEL', job.key, 'lease_until', 'worker')
    redis.call('HSET', job.key, 'available_at', available_at, 'attempts', attempts, 'updated_at', now)
    wait(base, id, job)
end

-- Ends a live job: one row of the history, or none (S12, P7). The row is the job's own, so that it is in one place.
local function finish(base, id, job, status, document, keeps)
    unplace(base, id, job)
    count(base, job.attempts, -1)
    put(base .. ':live', id, false)
    if job.unique_key then
        redis.call('HDEL', base .. ':unique', job.unique_key)
    end
    if not keeps then
        redis.call('DEL', job.key)
        thinned[base] = true
        return
    end
    local dead = status == 'dead_letter'
    redis.call('HSET', job.key, 'status', status, 'finished_at', now, dead and 'last_error' or 'document', document)
    put(base .. ':history', id, true)
    put(base .. ':ended', now .. id, true)
    if dead then
        put(base .. ':dead', id, true)
    end
end

-- A backoff: how long to wait after so many attempts, in microseconds. The share is the jitter, drawn by the caller.
local function read_backoff()
    return { base = number(), min = number(), max = number() }
end
local function delay(backoff, attempts, share)
    local micros = backoff.base * 2 ^ math.min(math.max(attempts - 1, 0), 1023) * (1 + share)
    if micros ~= micros or micros > 3155760000000000 then
        micros = 3155760000000000
    end
    return math.min(math.max(math.floor(micros + 0.0005), backoff.min), backoff.max)
end
