-- What everybody must know: the instance, the version of the policies, the policies if it is another than the one known, and
-- how many shards there are, and in which layout the keys are. ARGV: instance and version that are known, a number by chance, the shards to begin
-- with, the layout of the caller. KEYS: instance, version, policies, shards, layout. Instance and first version are drawn by chance, so that a server that has lost
-- everything is not taken for one that has not.
local instance = redis.call('GET', KEYS[1])
if not instance then
    instance = ARGV[3]
    redis.call('SET', KEYS[1], instance)
    redis.call('SET', KEYS[2], ARGV[3])
    redis.call('DEL', KEYS[3])
end
local shards = redis.call('GET', KEYS[4])
if not shards then
    shards = ARGV[4]
    redis.call('SET', KEYS[4], shards)
end
local layout = redis.call('GET', KEYS[5])
if not layout then
    layout = ARGV[5]
    redis.call('SET', KEYS[5], layout)
end
local version = redis.call('GET', KEYS[2])
local policies = false
if instance ~= ARGV[1] or version ~= ARGV[2] then
    policies = redis.call('HGETALL', KEYS[3])
end
return { instance, version, policies, shards, layout }
