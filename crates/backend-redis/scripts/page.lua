-- The next jobs of an index over many queues, by id, after a place: of the named queues, or of so many with a prefix, after a name. The answers: names
-- and ids, and after which name to go on, if there are more queues.
local set, direction, after, wanted = arg(), arg(), arg(), number()
is_backward = direction == 'backward'
local function page(q, from, count)
    if is_backward then
        return redis.call('ZRANGE', q.key, from or '+', '-', 'BYLEX', 'REV', 'LIMIT', 0, count)
    end
    return redis.call('ZRANGE', q.key, from or '-', '+', 'BYLEX', 'LIMIT', 0, count)
end
local function advance(q)
    q.at = q.at + 1
    if not q.page[q.at] and #q.page == q.size then
        q.size = math.min(2 * q.size, wanted)
        q.page, q.at = page(q, '(' .. q.next, q.size), 1
    end
    q.next = q.page[q.at]
end

local names, more = {}, ''
if queue_count > 0 then
    for index = 1, queue_count do
        names[index] = name_of(queue(index))
    end
else
    local prefix, last, count = arg(), arg(), number()
    local to = prefix == '' and '+' or '(' .. prefix .. '\127'
    names = redis.call('ZRANGEBYLEX', shard .. ':queues', last == '' and '[' .. prefix or '(' .. last, to, 'LIMIT', 0, count)
    more = #names == count and names[count] or ''
end
for _, name in ipairs(names) do
    local q = { name = name, key = shard .. ':' .. name .. ':' .. set, size = 1, at = 1 }
    q.page = page(q, after ~= '' and '(' .. after, 1)
    q.next = q.page[1]
    if q.next then
        put(q)
    end
end
local found = {}
while #heap > 0 and #found < wanted do
    local q = heap[1]
    found[#found + 1] = { q.name, q.next }
    advance(q)
    settle_first()
end
return { found, more }
