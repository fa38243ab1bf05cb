-- Extends live leases of one slot. The answer is when the lease ends, or empty if it is lost.
local answers = { now }
for _ = 1, number() do
    local base, id, epoch, micros = queue(number()), arg(), arg(), number()
    local job = live(base, id)
    local answer = ''
    if job and not (job.lease_until and job.epoch == epoch) then
        tell('lease_lost', base, id) -- H4
    elseif job and job.lease_until > now then -- H3
        answer = later(now, micros)
        if answer > job.lease_until then
            -- At once: the next item may be for the same lease.
            redis.call('ZREM', base .. ':leased', job.lease_until .. id)
            redis.call('ZADD', base .. ':leased', 0, answer .. id)
            redis.call('HSET', job.key, 'lease_until', answer, 'updated_at', now) -- H6
        else
            answer = job.lease_until -- H2
        end
    end
    answers[#answers + 1] = answer
end
conclude()
return answers
