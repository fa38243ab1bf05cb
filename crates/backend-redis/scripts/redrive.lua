-- Puts dead letters of one slot back into their queues. The answer to each is `moved`, `conflict` or `gone`.
local answers = {}
for position = 1, number() do
    local base, id = queue(number()), arg()
    local key = base .. ':' .. id
    local row = redis.call('HMGET', key, 'status', 'unique_key', 'priority', 'finished_at')
    local answer = 'gone'
    if row[1] == 'dead_letter' then
        local taken = row[2] and redis.call('HEXISTS', base .. ':unique', row[2]) == 1
        answer = taken and 'conflict' or 'moved' -- X4
        if not taken then
            remove(base, ':history', id)
            remove(base, ':dead', id)
            remove(base, ':ended', row[4] .. id)
            redis.call('HDEL', key, 'status', 'finished_at', 'worker', 'lease_until')
            redis.call('HSET', key, 'attempts', 0, 'available_at', now, 'updated_at', now) -- X2
            redis.call('HINCRBY', key, 'redrives', 1) -- X5
            if row[2] then
                redis.call('HSET', base .. ':unique', row[2], id)
            end
            add(base, ':live', id)
            wait(base, id, { priority = row[3], available_at = now, attempts = 0, max_attempts = 1 })
            tell('redriven', base, id)
        end
    end
    answers[position] = answer
end
conclude()
return answers
