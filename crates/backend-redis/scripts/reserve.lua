-- Reserves numbers in the sequence of a shard: the one before the first. ARGV: the one that it must not be before, how many, and where an earlier
-- reservation of the caller ends, if there is one. If it is still the last, it is moved up.
local floor, count, held = number(), number(), arg()
local first = redis.call('GET', shard .. ':sequence') == held and floor or sequence_from(floor)
sequence_to(first + count)
return string.format('%.0f', first)
