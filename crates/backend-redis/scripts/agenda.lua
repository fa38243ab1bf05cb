-- Where something may happen, page by page: queues of a prefix that are active, after a name; and of the others those whose
-- first job comes, or whose first lease passes, soonest. The answers: active queues, then pairs of the two other indexes.
local prefix, after, from, count = arg(), arg(), number(), number()
local to = prefix == '' and '+' or '(' .. prefix .. '\127'
local active = redis.call('ZRANGEBYLEX', shard .. ':active', after == '' and '[' .. prefix or '(' .. after, to, 'LIMIT', 0, count)
return {
    active,
    redis.call('ZRANGE', shard .. ':later', from, from + count - 1, 'WITHSCORES'),
    redis.call('ZRANGE', shard .. ':leases', from, from + count - 1, 'WITHSCORES'),
}
