-- Takes a live job out of the indexes that it is in.
local function unplace(base, id, job)
    if job.lease_until then
        released[base] = true
        remove(base, ':leased', job.lease_until .. id)
    elseif job.attempts >= job.max_attempts then
        released[base] = true
        remove(base, ':spent', id)
    else
        remove_waiting(base, rank(job.priority, job.available_at, id), job.attempts)
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
    remove(base, ':live', id)
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
    add(base, ':history', id)
    add(base, ':ended', now .. id)
    if dead then
        add(base, ':dead', id)
    end
end
