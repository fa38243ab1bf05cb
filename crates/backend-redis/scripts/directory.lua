-- What everybody must know: the version of the policies, the policies if it is another than the one known, how many
-- queues there are, and the names of those after the ones known. KEYS: version, policies, queues.
-- The first version is drawn by chance, so that a server that has lost everything is not taken for one that has not.
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
return { version, policies, redis.call('LLEN', KEYS[3]), redis.call('LRANGE', KEYS[3], known, known + 9999) }
