-- Forgets these finished jobs of one slot, of these statuses, if they ended so long ago: how many.
local limit = number()
local statuses = {}
for _ = 1, number() do
    statuses[arg()] = true
end
local forgotten = 0
for _ = 1, number() do
    local base, id, age = queue(number()), arg(), number()
    local row = redis.call('HMGET', base .. ':' .. id, 'status', 'finished_at')
    if forgotten < limit and row[1] and statuses[row[1]] and later(row[2], age) <= now then
        redis.call('DEL', base .. ':' .. id)
        thinned[base] = true
        remove(base, ':ended', row[2] .. id)
        remove(base, ':history', id)
        remove(base, ':dead', id)
        forgotten = forgotten + 1
    end
end
conclude()
return forgotten
