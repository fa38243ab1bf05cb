-- Each shard has a sequence of its own, so that no other must be asked. It is never behind the milliseconds of the clock, what the caller has
-- seen before, or the last job of the queues: a server that has lost its last writes gives no number again.
local function sequence_from(floor, is_fresh)
    local first = tonumber(redis.call('GET', shard .. ':sequence') or 0)
    local millis = tonumber(string.sub(now, 1, 12)) * 1000 + math.floor(tonumber(string.sub(now, 13)) / 1000)
    first = math.max(first, floor, millis)
    for index = 1, queue_count do
        -- A queue that has just got its number has no jobs.
        for _, set in ipairs(is_fresh and is_fresh[index] and {} or { ':live', ':history' }) do
            local last = redis.call('ZREVRANGEBYLEX', queue(index) .. set, '+', '-', 'LIMIT', 0, 1)[1]
            if last then
                first = math.max(first, tonumber(string.sub(last, 1, 13)))
            end
        end
    end
    return first
end
local function sequence_to(last)
    redis.call('SET', shard .. ':sequence', string.format('%.0f', last))
end
