-- A backoff: how long to wait after so many attempts, in microseconds. The share is the jitter, drawn by the caller.
local function read_backoff()
    return { base = number(), min = number(), max = number() }
end
local function delay(backoff, attempts, share)
    local micros = backoff.base * 2 ^ math.min(math.max(attempts - 1, 0), 1023) * (1 + share)
    if micros ~= micros or micros > 3155760000000000 then
        micros = 3155760000000000
    end
    return math.min(math.max(math.floor(micros + 0.0005), backoff.min), backoff.max)
end
