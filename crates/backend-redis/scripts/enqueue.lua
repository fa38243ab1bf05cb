-- Accepts jobs: all of them, since a script is not interrupted (E1). The last key is the sequence of all jobs. Each answer
-- is an id, and whether it is that of a job that was there already.
local jobs = number()
local sequence = redis.call('INCRBY', KEYS[#KEYS], jobs) - jobs
local answers = {}
for index = 1, jobs do
    local base, kind, priority = queue(number()), arg(), arg()
    local id = string.format('%013.0f%06d', sequence + index, number()) -- E10
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
        redis.call('ZADD', base .. ':live', 0, id)
        wait(base, id, { priority = priority, available_at = available_at, attempts = 0, max_attempts = 1 })
        tell('enqueued', id)
    end
end
publish()
return answers
