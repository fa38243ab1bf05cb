-- Takes back passed leases and ends jobs whose attempts are spent, in the queues of one slot.
local limit, random = number(), number()
local taken = {}

-- Jitter for each job: the generator of Park and Miller, seeded by the caller.
local function share(jitter)
    random = random * 16807 % 2147483647
    return jitter * (2 * random / 2147483647 - 1)
end

local function reclaim(index, id, policy, where, member)
    local base = queue(index)
    local job = live(base, id)
    if not job then
        -- Nobody can say what is to become of it. It stays where a person can find it, and is in nobody's way (R5).
        released[base] = true
        remove(base, where, member)
        return
    end
    if job.lease_until then
        redis.call('HINCRBY', job.key, 'epoch', 1) -- R8
    end
    if job.attempts >= job.max_attempts then
        local error = job.lease_until and '{"error":"lease_expired"}'
            or redis.call('HGET', job.key, 'last_error') or '{"error":"attempts_exhausted"}'
        taken[#taken + 1] = { index, id, job.kind, job.attempts, job.worker or '', '' }
        finish(base, id, job, 'dead_letter', error, true) -- R3, R4
        tell('dead_lettered', base, id)
    else
        local micros = policy.waits and delay(policy.backoff, job.attempts, share(policy.jitter)) or 0 -- R2, P12
        local available_at = later(now, micros)
        taken[#taken + 1] = { index, id, job.kind, job.attempts, job.worker or '', available_at }
        requeue(base, id, job, available_at, job.attempts)
        redis.call('HSET', job.key, 'last_error', '{"error":"lease_expired"}')
        tell('reclaimed', base, id)
    end
end

for index = 1, queue_count do
    local policy = { waits = arg() == 'backoff', jitter = number(), backoff = read_backoff() }
    local base = queue(index)
    local left = limit - #taken
    if left > 0 then
        for _, member in ipairs(redis.call('ZRANGEBYLEX', base .. ':leased', '-', '[' .. now .. '~', 'LIMIT', 0, left)) do
            reclaim(index, string.sub(member, 19), policy, ':leased', member)
        end
    end
    left = limit - #taken
    if left > 0 then
        for _, id in ipairs(redis.call('ZRANGEBYLEX', base .. ':spent', '-', '+', 'LIMIT', 0, left)) do
            reclaim(index, id, policy, ':spent', id)
        end
    end
    if #taken < limit then
        flush()
        local first = redis.call('ZRANGE', base .. ':leased', 0, 0)[1]
        if first then
            redis.call('ZADD', shard .. ':leases', string.sub(first, 1, 18), name_of(base))
        else
            redis.call('ZREM', shard .. ':leases', name_of(base))
        end
    end
end
conclude()
return taken
