-- Applies verdicts to jobs of one slot. A receipt is good if its job is live, leased and in its epoch; the answer to a
-- stale one is empty.
local outcomes = {}
for index = 1, number() do
    local base, id, epoch, verdict, document = queue(number()), arg(), arg(), arg(), arg()
    local after, share, keeps, backoff = arg(), number(), arg() == 'all', read_backoff()
    local job = live(base, id)
    local outcome = ''
    if job and job.lease_until and job.epoch == epoch then
        if verdict == 'retry' and job.attempts >= job.max_attempts then
            verdict = 'dead_letter' -- S6
        end
        if verdict == 'retry' then
            local micros = after ~= '' and tonumber(after) or delay(backoff, job.attempts, share) -- S4, S5
            outcome = later(now, micros)
            requeue(base, id, job, outcome, job.attempts)
            redis.call('HSET', job.key, 'last_error', document)
            tell('retried', base, id)
        elseif verdict == 'snooze' then
            outcome = later(now, tonumber(after))
            requeue(base, id, job, outcome, math.max(job.attempts - 1, 0)) -- S7
            tell('retried', base, id)
        else
            finish(base, id, job, verdict, document, keeps or verdict == 'dead_letter')
            outcome = verdict
            tell(verdict == 'dead_letter' and 'dead_lettered' or 'settled', base, id)
        end
    elseif job then
        tell('lease_lost', base, id)
    end
    outcomes[index] = outcome
end
conclude()
return outcomes
