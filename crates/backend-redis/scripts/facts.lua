-- Queues of one slot in numbers, without looking at their jobs.
local told = { now }
for index = 1, queue_count do
    local base = queue(index)
    local after_now = '(' .. now .. '~'
    local first = redis.call('ZRANGEBYLEX', base .. ':due', '-', '+', 'LIMIT', 0, 1)[1]
    local lease = redis.call('ZRANGEBYLEX', base .. ':leased', '-', '+', 'LIMIT', 0, 1)[1]
    local head = redis.call('ZRANGEBYLEX', base .. ':live', '-', '+', 'LIMIT', 0, 1)[1]
    local job = head and live(base, head)
    -- When the first job by id is available, if it waits for its time.
    local head_at = ''
    if job and not job.lease_until and job.attempts < job.max_attempts then
        head_at = job.available_at
    end
    local bucket = redis.call('HMGET', base .. ':bucket', 'rate', 'full_at')
    told[#told + 1] = {
        redis.call('ZCARD', base .. ':live'),
        redis.call('ZCARD', base .. ':leased'),
        redis.call('ZLEXCOUNT', base .. ':leased', after_now, '+'),
        redis.call('ZCARD', base .. ':spent'),
        redis.call('ZCARD', base .. ':due'),
        redis.call('ZLEXCOUNT', base .. ':due', after_now, '+'),
        redis.call('ZLEXCOUNT', base .. ':retried', after_now, '+'),
        redis.call('ZCARD', base .. ':dead'),
        first and string.sub(first, 1, 18) or '',
        lease and string.sub(lease, 1, 18) or '',
        head_at,
        { bucket[1] or '', bucket[2] or '' },
        redis.call('HGETALL', base .. ':attempts'),
    }
end
return told
