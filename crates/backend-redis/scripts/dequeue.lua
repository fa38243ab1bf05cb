-- Leases jobs of queues of one shard: `order` in one order of all of them, `turns` in turns, so many rounds of them. `peek` and
-- `look` lease nothing: the one tells the ranks of those that `order` would lease, the other how many of each queue `turns`
-- could. Which queues: those named, or if none is, the active ones of a prefix, after the one that was served last.
local mode, limit, most_bytes, rounds, worker = arg(), number(), number(), number(), arg()

local function rules()
    return { lease = number(), fifo = arg() == 'fifo', places = number(), rate = arg(), per_sec = number(), burst = number() }
end
local queues = {}
for index = 1, queue_count do
    queues[index] = rules()
    queues[index].base, queues[index].share = queue(index), number()
end

-- Microseconds from one time to another, nothing if it is not later.
local function between(from, to)
    local seconds = tonumber(string.sub(to, 1, 12)) - tonumber(string.sub(from, 1, 12))
    return math.max(0, seconds * 1000000 + tonumber(string.sub(to, 13)) - tonumber(string.sub(from, 13)))
end

-- How many jobs of a queue may be leased now (P1 to P4). A queue that is paused has no places, a Fifo queue has one.
local function quota(q)
    local most = math.min(limit, q.share or limit)
    if q.places then
        most = math.min(most, math.max(0, q.places - redis.call('ZCARD', q.base .. ':leased')))
    end
    if q.rate ~= '' and most > 0 then
        local bucket = redis.call('HMGET', q.base .. ':bucket', 'rate', 'full_at')
        -- Another rate starts with a full bucket.
        q.full_at = bucket[1] == q.rate and bucket[2] or now
        -- P14: further ahead than an empty bucket needs, by more than a second: the clock was set back since.
        local empty = later(now, math.floor(q.burst / q.per_sec * 1000000 + 0.5))
        if q.full_at > later(empty, 1000000) then
            q.full_at = empty
            redis.call('HSET', q.base .. ':bucket', 'full_at', empty)
        end
        local missing = between(now, q.full_at) / 1000000 * q.per_sec
        local tokens = math.floor(math.max(0, q.burst - missing + q.per_sec * 0.000002))
        most = math.min(most, tokens, q.burst)
    end
    return most
end

-- The live job with the smallest id, if it is Ready (P4, P5).
local function head(q)
    local id = redis.call('ZRANGEBYLEX', q.base .. ':live', '-', '+', 'LIMIT', 0, 1)[1]
    local job = id and live(q.base, id)
    if job and not job.lease_until and job.attempts < job.max_attempts and job.available_at <= now then
        return rank(job.priority, job.available_at, id)
    end
end

local function count_due(q)
    return redis.call('ZLEXCOUNT', q.base .. ':due', '-', '[' .. now .. '~')
end

-- The Ready jobs after the last one that was given, by looking at all that are due.
local function rest_of_due(q)
    local found = {}
    for _, member in ipairs(redis.call('ZRANGEBYLEX', q.base .. ':due', '-', '[' .. now .. '~')) do
        local id = string.sub(member, 19)
        local priority = redis.call('HGET', q.base .. ':' .. id, 'priority')
        local ranked = priority and rank(priority, string.sub(member, 1, 18), id)
        if ranked and (not q.last or ranked > q.last) then
            found[#found + 1] = ranked
        end
    end
    table.sort(found)
    return found
end

-- The next Ready job of a queue, if there is one. Pages of twice the size each time are read, so that next to nothing is read that is not given. Of a
-- priority whose next job is not due yet, the rest is skipped. If many priorities are, and fewer jobs are due, it is cheaper to look at those.
local function next_ready(q)
    if q.fifo then
        local is_first = not q.is_last
        q.is_last = true
        return is_first and head(q) or nil
    end
    q.page, q.at, q.from, q.size, q.skips = q.page or {}, q.at or 0, q.from or '-', q.size or 1, q.skips or 0
    while true do
        q.at = q.at + 1
        local member = q.page[q.at]
        if member and string.sub(member, 11, 28) <= now then
            q.last = member
            return member
        elseif member then
            q.skips = q.skips + 1
            q.page, q.at, q.from, q.size, q.is_last = {}, 0, '(' .. string.sub(member, 1, 10) .. '~', 1, false
            if q.skips >= 20 then
                q.due = q.due or count_due(q)
                if q.due <= 4 * q.skips then
                    q.page, q.is_last = rest_of_due(q), true
                end
            end
        elseif q.is_last then
            return nil
        else
            q.page, q.at = redis.call('ZRANGEBYLEX', q.base .. ':ready', q.from, '+', 'LIMIT', 0, q.size), 0
            q.is_last = #q.page < q.size
            q.from = '(' .. (q.page[#q.page] or '')
            q.size = math.min(2 * q.size, 512)
        end
    end
end

-- The fields of a job, in the order in which they are answered.
local fields = { 'kind', 'priority', 'unique_key', 'payload', 'headers', 'attempts', 'max_attempts', 'available_at',
    'lease_until', 'worker', 'epoch', 'first_leased_at', 'last_error', 'redrives', 'created_at', 'updated_at' }

-- A script leases at most so many jobs, and no more once it has read so many bytes of documents: it keeps everybody else waiting.
local leased, bytes = {}, 0
local function is_full()
    return #leased >= limit or bytes >= most_bytes
end

local function lease(q, member)
    local id = string.sub(member, 29)
    local key = q.base .. ':' .. id
    local job = redis.call('HMGET', key, unpack(fields))
    local attempts = tonumber(job[6])
    if not job[1] and redis.call('ZSCORE', q.base .. ':live', id) then
        -- It is still a job. Whatever has become of the rest of it, that is no reason to forget it.
        return false
    end
    remove_waiting(q.base, member, attempts or 1)
    if not (attempts and tonumber(job[11])) then
        return false -- somebody has removed or spoilt it by hand
    end
    bytes = bytes + #(job[4] or '') + #(job[5] or '') + #(job[13] or '')
    q.quota = q.quota - 1
    count(q.base, attempts, -1)
    count(q.base, attempts + 1, 1)
    local lease_until = later(now, q.lease) -- D7, P6
    add(q.base, ':leased', lease_until .. id)
    job[6], job[9], job[10] = tostring(attempts + 1), lease_until, worker -- D3
    -- D4: no server that has lost the last lease gives the same epoch again, since its clock has gone on.
    job[11] = string.format('%.0f', math.max(job[11] + 1, tonumber(now)))
    job[12], job[16] = job[12] or now, now -- D8
    redis.call('HSET', key, 'attempts', job[6], 'lease_until', lease_until, 'worker', worker, 'epoch', job[11],
        'first_leased_at', job[12], 'updated_at', now)
    if q.rate ~= '' then
        local start = q.full_at > now and q.full_at or now
        q.taken = (q.taken or 0) + 1
        local full_at = later(start, math.floor(q.taken / q.per_sec * 1000000 + 0.5))
        redis.call('HSET', q.base .. ':bucket', 'rate', q.rate, 'full_at', full_at)
        redis.call('PEXPIRE', q.base .. ':bucket', math.ceil(between(now, full_at) / 1000) + 1000)
    end
    if not q.watched then
        q.watched = true
        watch_lease(q.base, lease_until)
    end
    leased[#leased + 1] = { name_of(q.base), id, job }
    tell('leased', q.base, id)
    return true
end

local function take(q)
    q.quota = q.quota or quota(q)
    if q.quota <= 0 then
        return false
    end
    if mode == 'look' then
        local count = q.fifo and (head(q) and 1 or 0) or math.min(q.quota, count_due(q))
        if count > 0 then
            leased[#leased + 1] = { name_of(q.base), count }
        end
        return count > 0
    end
    local member
    repeat
        member = next_ready(q)
    until not member or lease(q, member)
    return member ~= nil
end

-- One round over these queues: those that gave.
local function round(open)
    local gave = {}
    for _, q in ipairs(open) do
        if is_full() then
            break
        end
        if take(q) then
            gave[#gave + 1] = q
        end
    end
    flush()
    rounds = rounds - 1
    return gave
end

if (mode == 'turns' or mode == 'look') and queue_count > 0 then
    while #queues > 0 and not is_full() and rounds > 0 do
        queues = round(queues)
    end
    conclude()
    return { leased, 1, is_full() and 'full' or '', '' }
end

-- From `cursor` to the end of the prefix, and then from its beginning to `origin`. After so many visits the caller comes
-- again. The answers beside the leases: whether that was all, and if not, where to go on.
if queue_count == 0 then
    local prefix, origin, part, cursor = arg(), arg(), arg(), arg()
    local shared = rules()
    local more, visits, gave = awake(), 0, {}
    while not is_full() do
        local from = cursor == '' and '[' .. prefix or '(' .. cursor
        local to = prefix == '' and '+' or '(' .. prefix .. '\127'
        if part == 'before' then
            to = '[' .. origin
        end
        local page = redis.call('ZRANGEBYLEX', shard .. ':active', from, to, 'LIMIT', 0, 50)
        for _, name in ipairs(page) do
            if is_full() then
                break
            end
            cursor, visits = name, visits + 1
            local q = { base = shard .. ':' .. name }
            for key, value in pairs(shared) do
                q[key] = value
            end
            if take(q) then
                gave[#gave + 1] = q
            end
        end
        if is_full() then
            break
        elseif #page < 50 then
            if part == 'before' or origin == '' then
                break
            end
            part, cursor = 'before', ''
        elseif visits >= 500 then
            conclude()
            return { leased, 0, part, cursor }
        end
    end
    flush()
    rounds = rounds - 1
    while mode == 'turns' and not more and #gave > 0 and not is_full() and rounds > 0 do
        gave = round(gave)
    end
    conclude()
    return { leased, more and 0 or 1, is_full() and 'full' or '', '' }
end

-- Of all queues together hardly more is read than is given.
for _, q in ipairs(queues) do
    q.quota = quota(q)
    q.size = #queues == 1 and math.min(limit, 512) or 1
    q.next = q.quota > 0 and next_ready(q)
    if q.next then
        put(q)
    end
end
local told = {}
while #heap > 0 and not is_full() and #told < limit do
    local q = heap[1]
    if mode == 'order' then
        lease(q, q.next)
    else
        told[#told + 1] = q.next
        q.quota = q.quota - 1
    end
    q.next = q.quota > 0 and next_ready(q)
    settle_first()
end
if mode == 'peek' then
    return told
end
conclude()
return { leased, 1, is_full() and 'full' or '', '' }
