-- An administrator's word on one job: `done`, `unknown`, or how the job has ended.
local base, id, word, document, keeps = queue(1), arg(), arg(), arg(), arg() == 'all'
local available_at = schedule()
local job, status = live(base, id)
if not job then
    return status or 'unknown'
end
if word == 'promote' then
    if job.lease_until or job.attempts >= job.max_attempts or job.available_at <= now then
        return 'done' -- A3
    end
    available_at = now
end
if job.lease_until then
    redis.call('HINCRBY', job.key, 'epoch', 1) -- A4
end
if word == 'discard' then
    finish(base, id, job, 'discarded', document, keeps) -- A2
    tell('settled', base, id)
else
    requeue(base, id, job, available_at, job.attempts) -- A1
    tell('retried', base, id)
end
conclude()
return 'done'
