-- Tells a shard which policies hold, unless it knows newer ones: its stamp, of the instance, their version, and a number that
-- changes when the numbers of queues change hands. KEYS: the stamp. ARGV: instance, version, a number by chance.
local stamp = redis.call('GET', KEYS[1])
local instance, version, generation = string.match(stamp or '', '^(%d+) (%d+) (%d+)$')
if instance ~= ARGV[1] or tonumber(version) < tonumber(ARGV[2]) then
    stamp = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. (generation or ARGV[3])
    redis.call('SET', KEYS[1], stamp)
end
return stamp
