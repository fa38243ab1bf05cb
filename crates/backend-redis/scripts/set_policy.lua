-- Sets one policy, if nobody has set any since this version. KEYS: version, policies.
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then
    return 0
end
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[2], ARGV[2])
else
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
redis.call('INCR', KEYS[1])
redis.pcall('PUBLISH', ARGV[4], 'policy ' .. ARGV[2])
return 1
