-- Sets one policy, if nobody has set any since this version: the version that holds now, or nothing. KEYS: version, policies.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return false
end
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[2], ARGV[2])
else
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return tostring(redis.call('INCR', KEYS[1]))
