-- What everybody must know: the instance, the version of the policies, the policies if it is another than the one known,
-- how many queues there are, and the names of those after the ones known. KEYS: version, policies, queues, instance.
-- Instance and first version are drawn by chance, so that a server that has lost everything is not taken for one that has
-- not.
local instance = redis.call('GET', KEYS[4])
if not instance then
    instance = ARGV[3]
    redis.call('SET', KEYS[4], instance)
end
local version = redis.call('GET', KEYS[1])
if not version then
    version = ARGV[3]
    redis.call('SET', KEYS[1], version)
end
local policies = false
if version ~= ARGV[1] then
    policies = redis.call('HGETALL', KEYS[2])
end
local known = tonumber(ARGV[2])
return { instance, version, policies, redis.call('LLEN', KEYS[3]), redis.call('LRANGE', KEYS[3], known, known + 9999) }
