-- Queues of a prefix that have a job that is due, after a name: one page, and whether more have come due than could be moved.
local prefix, after, count = arg(), arg(), number()
local more = awake()
local to = prefix == '' and '+' or '(' .. prefix .. '\127'
local from = after == '' and '[' .. prefix or '(' .. after
return { redis.call('ZRANGEBYLEX', shard .. ':active', from, to, 'LIMIT', 0, count), more and 1 or 0 }
