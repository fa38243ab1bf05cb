-- Leases jobs of the queues of one slot: `order` in one order of all of them, `turns` in turns, so many rounds of them.
-- `peek` leases nothing, and tells what `order` would.
local mode, limit, rounds, worker = arg(), number(), number(), arg()

local queues = {}
for index = 1, #KEYS - before_queues do
    queues[index] = {
        index = index, base = queue(index), lease = number(), fifo = arg() == 'fifo',
        places = number(), rate = arg(), per_sec = number(), burst = number(),
    }
end

-- How many jobs of a queue may be leased now (P1 to P4). A queue that is paused has no places, a Fifo queue has one.
local function quota(q)
    local most = limit
    if q.places then
        most = math.min(most, math.max(0, q.places - redis.call('ZCARD', q.base .. ':leased')))
    end
    if q.rate ~= '' and most > 0 then
        local bucket = redis.call('HMGET', q.base .. ':bucket', 'rate', 'full_at')
        -- Another rate starts with a full bucket.
        q.full_at = bucket[1] == q.rate and bucket[2] or now
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
        return { rank(job.priority, job.available_at, id) }
    end
    return {}
end

-- The first Ready jobs. Of a priority whose next job is not due yet, the rest is skipped.
local function first(q, most)
    if q.fifo then
        return head(q)
    end
    local found, from = {}, '-'
    while #found < most do
        local wanted = most - #found
        local page = redis.call('ZRANGEBYLEX', q.base .. ':ready', from, '+', 'LIMIT', 0, wanted)
        local skipped = false
        for _, member in ipairs(page) do
            if string.sub(member, 11, 28) > now then
                from, skipped = '(' .. string.sub(member, 1, 10) .. '~', true
                break
            end
            found[#found + 1] = member
            from = '(' .. member
        end
        if not skipped and #page < wanted then
            break
        end
    end
    return found
end

local leased = {}
local function lease(q, member)
    local id = string.sub(member, 29)
    local key = q.base .. ':' .. id
    local attempts = tonumber(redis.call('HGET', key, 'attempts'))
    remove_waiting(q.base, id, member, attempts or 1)
    if not attempts then
        return -- somebody has removed it by hand
    end
    count(q.base, attempts, -1)
    count(q.base, attempts + 1, 1)
    local lease_until = later(now, q.lease) -- D7, P6
    redis.call('ZADD', q.base .. ':leased', 0, lease_until .. id)
    redis.call('HINCRBY', key, 'attempts', 1) -- D3
    redis.call('HINCRBY', key, 'epoch', 1) -- D4
    redis.call('HSETNX', key, 'first_leased_at', now) -- D8
    redis.call('HSET', key, 'lease_until', lease_until, 'worker', worker, 'updated_at', now)
    if q.rate ~= '' then
        local start = q.full_at > now and q.full_at or now
        q.taken = (q.taken or 0) + 1
        local full_at = later(start, math.floor(q.taken / q.per_sec * 1000000 + 0.5))
        redis.call('HSET', q.base .. ':bucket', 'rate', q.rate, 'full_at', full_at)
    end
    leased[#leased + 1] = { q.index, id, redis.call('HGETALL', key) }
    tell('leased', id)
end

if mode == 'turns' then
    local open = queues
    while #open > 0 and #leased < limit and rounds > 0 do
        local again = {}
        for _, q in ipairs(open) do
            if #leased >= limit then
                break
            end
            q.quota = q.quota or quota(q)
            local member = q.quota > 0 and first(q, 1)[1]
            if member then
                lease(q, member)
                q.quota = q.quota - 1
                again[#again + 1] = q
            end
        end
        open, rounds = again, rounds - 1
    end
    publish()
    return leased
end

local found = {}
for _, q in ipairs(queues) do
    local most = quota(q)
    if most > 0 then
        for _, member in ipairs(first(q, most)) do
            found[#found + 1] = { member, q }
        end
    end
end
if #queues > 1 then
    table.sort(found, function(a, b) return a[1] < b[1] end)
end
if mode == 'peek' then
    local told = {}
    for index = 1, math.min(limit, #found) do
        told[index] = found[index][1]
    end
    return told
end
for index = 1, math.min(limit, #found) do
    lease(found[index][2], found[index][1])
end
publish()
return leased
