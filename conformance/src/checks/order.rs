//! The order in which jobs are leased, and the turns between queues.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::{Job, JobId, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request, request_named};

checks! { "order":
    priority_goes_first [D6];
    then_the_time_of_availability [D6];
    then_the_id [D6];
    one_order_over_all_named_queues [D6];
    a_batch_takes_the_first_of_the_order [D6, D12];
    a_requeued_job_goes_behind_those_that_waited [D6];
    inside_a_prefix_each_queue_keeps_its_order [D11];
    one_call_gives_turns_round_by_round [D11];
    calls_go_on_where_the_last_one_stopped [D11];
    a_busy_queue_does_not_starve_the_others [D11];
    prefixes_take_turns_apart [D11];

    times_are_compared_to_the_microsecond [D6];
    a_queue_that_comes_and_goes_starves_no_other [D11];
    turns_are_not_the_workers_own [D11];
    what_happens_between_calls_does_not_start_the_turns_again [D11];
}

async fn drain(stage: &Stage, queues: &str) -> Outcome<Vec<JobId>> {
    let mut order = Vec::new();
    for _ in 0..200 {
        match stage.claim(queues, 1).await?.pop() {
            Some(job) => order.push(job.id),
            None => break,
        }
    }
    Ok(order)
}

async fn priority_goes_first(stage: Stage) -> Outcome {
    let priorities = [0, 5, -5, i32::MAX, 5, i32::MIN, 1, -1, 300, 70_000, -40_000];
    let mut expected = Vec::new();
    for priority in priorities {
        expected.push((std::cmp::Reverse(priority), stage.enqueue(new_job("q").priority(priority)).await?));
    }
    expected.sort();
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    ensure_eq!(D6, "order by priority", drain(&stage, "q").await?, expected);
    Ok(())
}

async fn then_the_time_of_availability(stage: Stage) -> Outcome {
    let mut by_time = Vec::new();
    for minutes in [50, 10, 40, 20, 30] {
        let delay = Duration::from_secs(minutes * 60);
        by_time.push((minutes, stage.enqueue(new_job("q").delay(delay)).await?));
    }
    by_time.push((0, stage.enqueue(new_job("q")).await?));
    let urgent = stage.enqueue(new_job("q").delay(HOUR).priority(1)).await?;
    stage.age(2 * HOUR).await?;
    by_time.sort_unstable();
    let expected: Vec<_> = std::iter::once(urgent).chain(by_time.into_iter().map(|(_, id)| id)).collect();
    ensure_eq!(D6, "order by available_at within a priority", drain(&stage, "q").await?, expected);
    Ok(())
}

async fn then_the_id(stage: Stage) -> Outcome {
    let at = stage.now().await? + 2 * HOUR;
    let mut expected = Vec::new();
    for _ in 0..12 {
        expected.push(stage.enqueue(new_job("q").at(at)).await?);
    }
    stage.age(3 * HOUR).await?;
    ensure_eq!(D6, "order by id of jobs available at one time", drain(&stage, "q").await?, expected);

    // One batch is one time: its jobs tie too.
    let expected = stage.enqueue_many("batch", 25).await?;
    let mut seen = Vec::new();
    for limit in [1, 7, 3, 14] {
        seen.extend(ids(&stage.claim("batch", limit).await?));
    }
    ensure_eq!(D6, "order of the jobs of one batch", seen, expected);
    Ok(())
}

async fn one_order_over_all_named_queues(stage: Stage) -> Outcome {
    let mut expected = Vec::new();
    for (queue, priority) in [("a", 1), ("b", 5), ("c", 3), ("b", 1), ("a", 5), ("c", 5), ("a", 3), ("b", 3)]
    {
        expected.push((std::cmp::Reverse(priority), stage.enqueue(new_job(queue).priority(priority)).await?));
    }
    stage.enqueue(new_job("d").priority(9)).await?;
    expected.sort();
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    let mut seen = Vec::new();
    for limit in [1, 2, 1, 3, 1] {
        seen.extend(ids(&stage.store.dequeue(&request_named(&["c", "a", "b"], limit)?).await?));
    }
    ensure_eq!(D6, "order over the queues a, b and c", seen, expected);
    Ok(())
}

async fn a_batch_takes_the_first_of_the_order(stage: Stage) -> Outcome {
    let mut expected = Vec::new();
    for number in 0..30 {
        let priority = [2, 0, 1][number % 3];
        expected.push((std::cmp::Reverse(priority), stage.enqueue(new_job("q").priority(priority)).await?));
    }
    expected.sort();
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    let first = ids(&stage.claim("q", 13).await?);
    ensure_eq!(D6, "the first 13, in the order of the answer", first, expected[..13]);
    let rest = ids(&stage.claim("q", 100).await?);
    ensure_eq!(D6, "the other 17, in the order of the answer", rest, expected[13..]);
    Ok(())
}

async fn a_requeued_job_goes_behind_those_that_waited(stage: Stage) -> Outcome {
    let waiting = stage.enqueue_many("q", 5).await?;
    stage.age(HOUR).await?;
    let jobs = stage.claim("q", 3).await?;
    ensure_eq!(D6, "leased", ids(&jobs), waiting[..3]);
    stage.settle(jobs[0].receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
    stage.settle(jobs[1].receipt(), Verdict::snooze(Duration::ZERO)?).await?;
    let expected = [waiting[3], waiting[4]];
    ensure_eq!(D6, "before the requeued ones", ids(&stage.claim("q", 2).await?), expected);
    let mut requeued = ids(&stage.claim("q", 2).await?);
    requeued.sort_unstable();
    ensure_eq!(D6, "then the requeued ones", requeued, waiting[..2]);
    Ok(())
}

async fn inside_a_prefix_each_queue_keeps_its_order(stage: Stage) -> Outcome {
    let mut expected: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for number in 0..24 {
        let queue = ["g:a", "g:b", "g:c"][number % 3];
        let priority = [0, 2, 1, 2][number % 4];
        let id = stage.enqueue(new_job(queue).priority(priority)).await?;
        expected.entry(queue).or_default().push((std::cmp::Reverse(priority), id));
    }
    let mut seen: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
    for limit in [1, 5, 2, 3, 7, 6] {
        for job in stage.claim("g:*", limit).await? {
            seen.entry(job.queue.to_string()).or_default().push(job.id);
        }
    }
    for (queue, mut jobs) in expected {
        jobs.sort();
        let jobs: Vec<_> = jobs.into_iter().map(|(_, id)| id).collect();
        ensure_eq!(D11, format!("order inside {queue}"), seen.get(queue), Some(&jobs));
    }
    Ok(())
}

async fn one_call_gives_turns_round_by_round(stage: Stage) -> Outcome {
    for (queue, count) in [("g:1", 50), ("g:2", 3), ("g:3", 1), ("g:4", 10)] {
        stage.enqueue_many(queue, count).await?;
    }
    // Urgent work in one queue does not take another queue's turn.
    stage.enqueue(new_job("g:1").priority(9)).await?;
    let jobs = stage.claim("g:*", 12).await?;
    // Rounds: 4 + 3 + 3 + 2 of (g:1, g:2, g:3, g:4).
    let counts = by_queue(&jobs);
    let pairs = [("g:2", 3), ("g:3", 1)];
    for (queue, expected) in pairs {
        ensure!(
            D11,
            counts.get(queue) == Some(&expected),
            "12 leases over four queues were given as {counts:?}"
        );
    }
    ensure_eq!(
        D11,
        format!("leases of g:1 and g:4 in {counts:?}"),
        (counts.get("g:1"), counts.get("g:4")),
        (Some(&4), Some(&4))
    );
    let jobs = stage.claim("g:*", 2).await?;
    ensure_eq!(D11, "queues of the next two", by_queue(&jobs).len(), 2);
    Ok(())
}

async fn calls_go_on_where_the_last_one_stopped(stage: Stage) -> Outcome {
    let queues = ["g:a", "g:b", "g:c", "g:d", "g:e"];
    for queue in queues {
        stage.enqueue_many(queue, 6).await?;
    }
    for limit in [1, 2, 3] {
        let mut served = Vec::new();
        while served.len() < queues.len() {
            let jobs = stage.store.dequeue(&request("g:*", limit)?).await?;
            ensure!(D11, !jobs.is_empty(), "nothing was leased after {served:?}");
            served.extend(jobs.into_iter().map(|job| job.queue.to_string()));
        }
        let mut first_turn = served[..queues.len()].to_vec();
        first_turn.sort();
        ensure!(
            D11,
            first_turn == queues,
            "calls of {limit} served the queues {served:?}, one again before its turn"
        );
        // Finish the turn, so that the next limit begins with a new one.
        let over = (queues.len() - served.len() % queues.len()) % queues.len();
        for _ in 0..over {
            stage.claim("g:*", 1).await?;
        }
    }
    Ok(())
}

async fn a_busy_queue_does_not_starve_the_others(stage: Stage) -> Outcome {
    stage.enqueue_many("g:busy", 300).await?;
    for number in 0..9 {
        stage.enqueue_many(&format!("g:small{number}"), 2).await?;
    }
    let mut others = 0;
    for _ in 0..4 {
        let counts = by_queue(&stage.claim("g:*", 5).await?);
        others += counts
            .iter()
            .filter(|(queue, _)| queue.as_str() != "g:busy")
            .map(|(_, count)| count)
            .sum::<usize>();
    }
    ensure!(
        D11,
        others == 18,
        "of 20 leases the nine small queues with two jobs each got {others}, expected 18"
    );
    Ok(())
}

async fn prefixes_take_turns_apart(stage: Stage) -> Outcome {
    let queues = ["g:a", "g:m", "g:z", "h:a", "h:m", "h:z"];
    for queue in queues {
        stage.enqueue_many(queue, 3).await?;
    }
    let mut served = Vec::new();
    for _ in 0..3 {
        for prefix in ["g:*", "h:*"] {
            served.extend(stage.claim(prefix, 1).await?.into_iter().map(|job| job.queue.to_string()));
        }
    }
    served.sort();
    ensure!(D11, served == queues, "asked for g:* and h:* in turn, three times each, served were {served:?}");
    Ok(())
}

fn by_queue(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        *counts.entry(job.queue.to_string()).or_default() += 1;
    }
    counts
}

async fn times_are_compared_to_the_microsecond(stage: Stage) -> Outcome {
    let at = stage.now().await? + HOUR;
    let mut expected = Vec::new();
    // Enqueued from the last to the first, so that a coarser comparison would go by the ids.
    for micros in [3_000_001, 3_000_000, 1001, 1000, 2, 1, 0] {
        expected.insert(0, stage.enqueue(new_job("q").at(at + Duration::from_micros(micros))).await?);
    }
    stage.age(2 * HOUR).await?;
    ensure_eq!(D6, "order of jobs a microsecond apart", drain(&stage, "q").await?, expected);
    Ok(())
}

async fn a_queue_that_comes_and_goes_starves_no_other(stage: Stage) -> Outcome {
    for queue in ["g:c", "g:d"] {
        stage.enqueue_many(queue, 12).await?;
    }
    let mut served: Vec<String> = Vec::new();
    for _ in 0..12 {
        // Two queues that have one job, and nothing at all while the next one is served.
        for queue in ["g:a", "g:b"].into_iter().filter(|queue| served.last().is_none_or(|last| last != queue))
        {
            if stage.store.stats(&queue.parse()?).await?.iter().all(|row| row.live() == 0) {
                stage.enqueue(new_job(queue)).await?;
            }
        }
        let job = stage.claim_one("g:*").await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
        let name = job.queue.to_string();
        let since = served.iter().rposition(|other| *other == name).map(|place| &served[place + 1..]);
        for other in ["g:c", "g:d"].into_iter().filter(|other| *other != name) {
            let waited = since.is_none_or(|since| since.iter().any(|queue| queue == other));
            ensure!(D11, waited, "{name} was served again before {other}: {served:?}");
        }
        served.push(name);
    }
    let all = ["g:c", "g:d"].iter().all(|queue| served.iter().any(|name| name == queue));
    ensure!(D11, all, "served were {served:?}, two queues with jobs were not");
    Ok(())
}

async fn turns_are_not_the_workers_own(stage: Stage) -> Outcome {
    let queues = ["g:a", "g:b", "g:c", "g:d"];
    for queue in queues {
        stage.enqueue_many(queue, 3).await?;
    }
    let mut served = Vec::new();
    for worker in ["one", "two", "three", "four"] {
        let request = leasehold_core::Dequeue::new("g:*", worker)?.lease_for(HOUR)?;
        served.extend(stage.store.dequeue(&request).await?.into_iter().map(|job| job.queue.to_string()));
    }
    served.sort();
    ensure!(D11, served == queues, "four workers of one handle were served from {served:?}");
    Ok(())
}

async fn what_happens_between_calls_does_not_start_the_turns_again(stage: Stage) -> Outcome {
    let queues = ["g:a", "g:b", "g:c", "g:d"];
    for queue in queues {
        stage.enqueue_many(queue, 9).await?;
    }
    let policies = stage.store.capabilities().policies;
    for what in ["enqueue", "reclaim", "set_policy", "another claim"] {
        let mut served = Vec::new();
        for _ in queues {
            served.push(stage.claim_one("g:*").await?.queue.to_string());
            match what {
                "enqueue" => drop(stage.enqueue(new_job("g:a")).await?),
                "reclaim" => drop(stage.reclaim().await?),
                "set_policy" if policies => {
                    let max_attempts = Some(leasehold_core::MaxAttempts::new(served.len() as u32)?);
                    let policy = leasehold_core::QueuePolicy { max_attempts, ..Default::default() };
                    stage.set_policy("other", policy).await?;
                }
                _ => drop(stage.claim("other", 1).await?),
            }
        }
        served.sort();
        ensure!(D11, served == queues, "with {what} between the calls, served were {served:?}");
    }
    Ok(())
}
