-- Gives numbers to queues that have none yet, and tells those of all that are asked for. KEYS: queues, numbers.
local numbers = {}
for index, name in ipairs(ARGV) do
    local number = redis.call('HGET', KEYS[2], name)
    if not number then
        if redis.call('LLEN', KEYS[1]) >= 999999 then
            return redis.error_reply('FULL there are a million queues')
        end
        number = redis.call('RPUSH', KEYS[1], name)
        redis.call('HSET', KEYS[2], name, number)
    end
    numbers[index] = tonumber(number)
end
return numbers
