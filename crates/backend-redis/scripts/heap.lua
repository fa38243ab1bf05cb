-- Queues by what comes next in each: a heap. `next` of a queue is text.
local heap, is_backward = {}, false
local function comes_first(one, other)
    if is_backward then
        return one.next > other.next
    end
    return one.next < other.next
end
local function put(q)
    local at = #heap + 1
    while at > 1 do
        local above = math.floor(at / 2)
        if not comes_first(q, heap[above]) then
            break
        end
        heap[at], at = heap[above], above
    end
    heap[at] = q
end
-- The first queue has another `next` now, or none.
local function settle_first()
    local q = heap[1]
    if not q.next then
        q = table.remove(heap)
    end
    local at, count = 1, #heap
    if count == 0 then
        return
    end
    while 2 * at <= count do
        local child = 2 * at
        if child < count and comes_first(heap[child + 1], heap[child]) then
            child = child + 1
        end
        if not comes_first(heap[child], q) then
            break
        end
        heap[at], at = heap[child], child
    end
    heap[at] = q
end
