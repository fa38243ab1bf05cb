//! Policies: kept as set, put together field by field, and obeyed.

use std::time::Duration;

use leasehold_core::contract::{P6, P8, P11};
use leasehold_core::{
    Archive, Backoff, Capabilities, ConcurrencyLimit, Delay, FinalStatus, HeartbeatOutcome, Json,
    MaxAttempts, OnExpiry, Policies, QueueOrder, QueuePolicy, RateLimit, ReceiptStatus, Record, Store,
    StoreError, Verdict, time,
};

use super::scene::{fifo, holds, pattern, paused, within};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, queue, request_named};

checks! { "policy":
    policies_are_kept_as_set [P9] needs Policies;
    a_policy_is_replaced_as_a_whole [P9] needs Policies;
    a_policy_holds_for_every_handle_at_once [P9] needs Policies;
    the_nearest_policy_counts_field_by_field [P8] needs Policies;
    no_lease_reaches_further_than_max_lease [P6] needs Policies;
    no_heartbeat_reaches_further_than_max_lease [P6] needs Policies;
    an_archive_policy_that_comes_after_the_job_counts [P7] needs Policies;
    only_dead_letters_are_archived [P7] needs Policies;
    what_the_backend_cannot_keep_is_refused [P11];
    policies_are_kept_to_the_last_digit [P9] needs Policies;
    every_policy_holds_for_handles_that_are_open [P9, C5] needs Policies;
    a_prefix_changes_what_holds_for_queues_with_a_policy_of_their_own [P8] needs Policies;
}

/// A policy that says something about everything that the backend can keep.
fn full(capabilities: &Capabilities) -> Outcome<QueuePolicy> {
    let limit = ConcurrencyLimit::new(1_000_000)?;
    let rate = RateLimit::new(0.125, 77)?;
    Ok(QueuePolicy {
        paused: Some(false),
        concurrency_limit: capabilities.concurrency_limit.then_some(limit),
        rate: capabilities.rate_limit.then_some(rate),
        max_lease: Some(lease_for(Duration::from_micros(1_234_567))?),
        backoff: Some(Backoff::new(3 * HOUR, 0.3, Duration::from_micros(1), 99 * HOUR)?),
        max_attempts: Some(MaxAttempts::new(1000)?),
        order: capabilities.fifo.then_some(QueueOrder::Fifo),
        retention: Some(Delay::new(36_525 * 24 * HOUR)?),
        archive: Some(Archive::DeadOnly),
        on_expiry: Some(OnExpiry::Backoff),
    })
}

async fn policies_are_kept_as_set(stage: Stage) -> Outcome {
    let full = full(&stage.store.capabilities())?;
    let plain = QueuePolicy {
        order: Some(QueueOrder::Priority),
        archive: Some(Archive::All),
        on_expiry: Some(OnExpiry::RetryNow),
        retention: Some(Delay::ZERO),
        ..QueuePolicy::default()
    };
    let set =
        [("z", &full), ("*", &plain), ("a b'\"\\%_*", &full), ("a", &plain), ("A", &full), ("a*", &full)];
    let mut expected = Policies::default();
    for (name, policy) in set {
        stage.set_policy(name, policy.clone()).await?;
        expected.set(pattern(name)?, policy.clone());
        ensure_eq!(P9, format!("policies after that of {name:?}"), stage.store.policies().await?, expected);
    }
    let other = stage.connect().await?;
    ensure_eq!(P9, "policies seen by another handle", other.policies().await?, expected);
    let effective = other.policy(&queue("z")?).await?;
    ensure_eq!(P9, "what holds for z", effective, expected.effective(&queue("z")?));
    Ok(())
}

async fn a_policy_is_replaced_as_a_whole(stage: Stage) -> Outcome {
    let full = full(&stage.store.capabilities())?;
    let one = QueuePolicy { max_attempts: Some(MaxAttempts::new(3)?), ..QueuePolicy::default() };
    for name in ["q", "q*"] {
        stage.set_policy(name, full.clone()).await?;
        stage.set_policy(name, one.clone()).await?;
        let seen = stage.store.policies().await?.set_for(&pattern(name)?);
        ensure_eq!(P9, format!("policy of {name}"), seen, one);
    }
    stage.connect().await?.set_policy(&pattern("q")?, &QueuePolicy::default()).await?;
    let expected = Policies::new([(pattern("q*")?, one)]);
    ensure_eq!(P9, "policies after an empty one", stage.store.policies().await?, expected);
    stage.set_policy("none", QueuePolicy::default()).await?;
    ensure_eq!(P9, "policies after another empty one", stage.store.policies().await?, expected);
    Ok(())
}

async fn a_policy_holds_for_every_handle_at_once(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let attempts = async |handle: &dyn Store| -> Outcome<u32> {
        let answers = handle.enqueue(&[new_job("q").build()?]).await?;
        Ok(stage.live(answers[0].id).await?.max_attempts.get())
    };
    ensure_eq!(P9, "max_attempts without a policy", attempts(&*other).await?, 5);
    for count in [7, 3, 9] {
        let max_attempts = Some(MaxAttempts::new(count)?);
        stage.set_policy("q*", QueuePolicy { max_attempts, ..QueuePolicy::default() }).await?;
        for handle in [&other, &stage.store, &stage.connect().await?] {
            let seen = attempts(&**handle).await?;
            ensure_eq!(P9, "max_attempts after another handle has set the policy", seen, count);
        }
    }
    Ok(())
}

async fn the_nearest_policy_counts_field_by_field(stage: Stage) -> Outcome {
    let attempts = |attempts| MaxAttempts::new(attempts).map(Some);
    let set = [
        (
            "*",
            QueuePolicy {
                max_attempts: attempts(9)?,
                max_lease: Some(lease_for(5 * HOUR)?),
                ..QueuePolicy::default()
            },
        ),
        ("game:1", QueuePolicy { max_attempts: attempts(7)?, ..QueuePolicy::default() }),
        ("g*", QueuePolicy { max_attempts: attempts(8)?, ..QueuePolicy::default() }),
        ("game:*", QueuePolicy { max_lease: Some(lease_for(2 * HOUR)?), ..QueuePolicy::default() }),
        ("g_*", QueuePolicy { max_attempts: attempts(1)?, ..QueuePolicy::default() }),
        ("GAME:1", QueuePolicy { max_attempts: attempts(1)?, ..QueuePolicy::default() }),
    ];
    let policies = Policies::new(
        set.clone()
            .into_iter()
            .map(|(name, policy)| Ok((pattern(name)?, policy)))
            .collect::<Outcome<Vec<_>>>()?,
    );
    for (name, policy) in set {
        stage.set_policy(name, policy).await?;
    }
    for (name, attempts, hours) in
        [("game:1", 7, 2), ("game:2", 8, 2), ("go", 8, 5), ("x", 9, 5), ("game:", 8, 2)]
    {
        let effective = stage.store.policy(&queue(name)?).await?;
        ensure_eq!(P8, format!("what holds for {name}"), effective, policies.effective(&queue(name)?));
        let id = stage.enqueue(new_job(name)).await?;
        ensure_eq!(P8, format!("max_attempts in {name}"), stage.live(id).await?.max_attempts.get(), attempts);
        let from = stage.now().await?;
        let jobs = stage.store.dequeue(&request_named(&[name], 1)?.lease_for(6 * HOUR)?).await?;
        let to = stage.now().await?;
        let until =
            jobs.first().and_then(|job| job.lease.as_ref()).map(|lease| lease.until).unwrap_or_default();
        let bracket = (time::later(from, hours * HOUR), time::later(to, hours * HOUR));
        within(P8, &format!("the end of a lease in {name}"), until, bracket)?;
    }
    Ok(())
}

async fn no_lease_reaches_further_than_max_lease(stage: Stage) -> Outcome {
    let limits = [("short", Some(HOUR)), ("long", Some(9 * HOUR)), ("free", None)];
    for (name, limit) in limits {
        let max_lease = limit.map(lease_for).transpose()?;
        stage.set_policy(name, QueuePolicy { max_lease, ..QueuePolicy::default() }).await?;
        stage.enqueue(new_job(name)).await?;
    }
    let request = request_named(&["short", "long", "free"], 10)?.lease_for(3 * HOUR)?;
    let from = stage.now().await?;
    let jobs = stage.store.dequeue(&request).await?;
    let to = stage.now().await?;
    ensure_eq!(P6, "leased", jobs.len(), 3);
    for job in jobs {
        let length = if job.queue.as_str() == "short" { HOUR } else { 3 * HOUR };
        let until = job.lease.as_ref().map(|lease| lease.until).unwrap_or_default();
        let bracket = (time::later(from, length), time::later(to, length));
        within(P6, &format!("the end of a lease in {}", job.queue), until, bracket)?;
        ensure_eq!(P6, "the stored job", stage.live(job.id).await?, job);
    }
    Ok(())
}

async fn no_heartbeat_reaches_further_than_max_lease(stage: Stage) -> Outcome {
    let free = stage.leased(new_job("free")).await?;
    let held = stage.leased(new_job("q")).await?;
    stage
        .set_policy("q", QueuePolicy { max_lease: Some(lease_for(2 * HOUR)?), ..QueuePolicy::default() })
        .await?;
    let from = stage.now().await?;
    let beats = stage.store.heartbeat(&[held.receipt(), free.receipt()], lease_for(9 * HOUR)?).await?;
    let to = stage.now().await?;
    for ((job, hours), beat) in [(&held, 2), (&free, 9)].into_iter().zip(beats) {
        let bracket = (time::later(from, hours * HOUR), time::later(to, hours * HOUR));
        let until = stage.live(job.id).await?.lease.map(|lease| lease.until).unwrap_or_default();
        within(P6, &format!("the end of a heartbeat in {}", job.queue), until, bracket)?;
        let told = matches!(beat, HeartbeatOutcome::Extended { until: told, .. } if told == until);
        ensure!(P6, told, "the lease ends at {until}, the answer is {beat:?}");
    }
    let max_lease = Some(lease_for(HOUR)?);
    stage.set_policy("free", QueuePolicy { max_lease, ..QueuePolicy::default() }).await?;
    let before = stage.live(free.id).await?.lease.map(|lease| lease.until).unwrap_or_default();
    let beats = stage.store.heartbeat(&[free.receipt()], lease_for(3 * HOUR)?).await?;
    let kept = matches!(beats[..], [HeartbeatOutcome::Extended { until, .. }] if until == before);
    ensure!(H2, kept, "a lease from before max_lease, until {before}, was answered {beats:?}");
    Ok(())
}

async fn an_archive_policy_that_comes_after_the_job_counts(stage: Stage) -> Outcome {
    let policy = |archive| QueuePolicy { archive: Some(archive), ..QueuePolicy::default() };
    for (first, then, kept) in
        [(Archive::All, Archive::DeadOnly, false), (Archive::DeadOnly, Archive::All, true)]
    {
        for is_leased_before in [true, false] {
            stage.set_policy("q", policy(first)).await?;
            stage.enqueue(new_job("q")).await?;
            let held = if is_leased_before { Some(stage.claim_one("q").await?) } else { None };
            stage.set_policy("q", policy(then)).await?;
            let job = match held {
                Some(job) => job,
                None => stage.claim_one("q").await?,
            };
            stage.settle(job.receipt(), Verdict::done()).await?;
            let is_kept = stage.store.get(job.id).await?.is_some();
            ensure_eq!(P7, format!("kept, when {first:?} became {then:?} before the end"), is_kept, kept);
        }
    }
    Ok(())
}

async fn only_dead_letters_are_archived(stage: Stage) -> Outcome {
    stage.set_policy("q", QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() }).await?;
    let endings = [
        (Verdict::done(), None),
        (Verdict::discard("no"), None),
        (Verdict::dead("no"), Some(FinalStatus::DeadLetter)),
        (Verdict::retry("last"), Some(FinalStatus::DeadLetter)),
    ];
    for (verdict, kept) in endings {
        let job = stage.leased(new_job("q").max_attempts(1).unique_key("k")).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        let found = stage.store.get(job.id).await?.and_then(Record::finished).map(|job| job.outcome.status());
        ensure_eq!(P7, format!("kept after {verdict:?}"), found, kept);
        let worth = kept.map_or(ReceiptStatus::Gone, |status| ReceiptStatus::Finished { status });
        ensure_eq!(P7, "its receipt", stage.store.receipts(&[job.receipt()]).await?, [worth]);
    }
    let discarded = stage.enqueue(new_job("q")).await?;
    stage.store.discard(discarded, Json::null()).await?;
    ensure_eq!(P7, "kept of a job that an administrator discarded", stage.store.get(discarded).await?, None);
    let expired = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    ensure_eq!(P7, "kept", stage.finished(expired.id).await?.outcome.status(), FinalStatus::DeadLetter);
    let other = stage.leased(new_job("other")).await?;
    stage.settle(other.receipt(), Verdict::done()).await?;
    ensure_eq!(P7, "finished jobs kept", stage.dump().await?.history.len(), 4);
    Ok(())
}

async fn what_the_backend_cannot_keep_is_refused(stage: Stage) -> Outcome {
    let can = stage.store.capabilities();
    let all = full(&Capabilities::full())?;
    let one = QueuePolicy::default;
    let mut refused = vec![];
    if !can.policies {
        refused.extend([paused(), QueuePolicy { max_attempts: all.max_attempts, ..one() }]);
    }
    if !can.concurrency_limit {
        refused.push(QueuePolicy { concurrency_limit: all.concurrency_limit, ..one() });
        refused.push(QueuePolicy { concurrency_limit: all.concurrency_limit, paused: Some(true), ..one() });
    }
    if !can.rate_limit {
        refused.push(QueuePolicy { rate: all.rate, ..one() });
    }
    if !can.fifo {
        refused.push(fifo());
    }
    stage.enqueue(new_job("q")).await?;
    let before = stage.dump().await?;
    for policy in refused {
        for name in ["q", "q*"] {
            let answer = stage.store.set_policy(&pattern(name)?, &policy).await;
            let right = matches!(answer, Err(StoreError::Unsupported { .. }));
            ensure!(P11, right, "{policy:?} for {name} was answered {answer:?}");
        }
    }
    holds(P11, &stage, &before, "a refused policy changed something").await
}

async fn policies_are_kept_to_the_last_digit(stage: Stage) -> Outcome {
    let can = stage.store.capabilities();
    let odd = HOUR + Duration::from_micros(1_234_567);
    let long = 36_524 * 24 * HOUR + Duration::from_micros(999_999);
    for (rate, jitter) in [(0.1, 0.1), (1_234.567_891_234, 1.0 / 3.0), (0.001, 0.0), (10_000.0, 1.0)] {
        let policy = QueuePolicy {
            rate: can.rate_limit.then_some(RateLimit::new(rate, 1_000_000)?),
            max_lease: Some(lease_for(odd)?),
            backoff: Some(Backoff::new(odd, jitter, Duration::from_micros(1001), long)?),
            retention: Some(Delay::new(long)?),
            ..QueuePolicy::default()
        };
        for name in ["q", "q*"] {
            stage.set_policy(name, policy.clone()).await?;
            let seen = stage.connect().await?.policies().await?.set_for(&pattern(name)?);
            ensure_eq!(P9, format!("policy of {name}"), seen, policy);
        }
        let effective = stage.store.policy(&queue("q1")?).await?;
        ensure_eq!(P9, "the rate that holds for q1", effective.rate, policy.rate);
    }
    Ok(())
}

async fn every_policy_holds_for_handles_that_are_open(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    // The other handle has seen every queue before it has a policy.
    for name in ["paused", "lease", "backoff", "attempts", "archive", "expiry", "old"] {
        other.enqueue(&[new_job(name).delay(HOUR).build()?]).await?;
        other.policy(&queue(name)?).await?;
    }
    let claim = async |name: &str| -> Outcome<leasehold_core::Job> {
        other.enqueue(&[new_job(name).build()?]).await?;
        let mut jobs = other.dequeue(&request_named(&[name], 1)?).await?;
        ensure!(D13, jobs.len() == 1, "one job of {name} is Ready, leased were {jobs:?}");
        Ok(jobs.remove(0))
    };
    for name in ["paused", "lease", "backoff", "archive", "expiry"] {
        let job = claim(name).await?;
        other.settle(&[(job.receipt(), Verdict::discard("a look"))]).await?;
    }
    other.prune(&leasehold_core::Prune::by_retention(leasehold_core::BatchSize::MAX)).await?;
    let backoff = Some(Backoff::new(5 * HOUR, 0.0, Duration::ZERO, 9 * HOUR)?);
    let none = QueuePolicy::default;
    let set = [
        ("paused", paused()),
        ("lease", QueuePolicy { max_lease: Some(lease_for(HOUR / 2)?), ..none() }),
        ("backoff", QueuePolicy { backoff, ..none() }),
        ("attempts", QueuePolicy { max_attempts: Some(MaxAttempts::new(2)?), ..none() }),
        ("archive", QueuePolicy { archive: Some(Archive::DeadOnly), ..none() }),
        ("expiry", QueuePolicy { on_expiry: Some(OnExpiry::Backoff), backoff, ..none() }),
        ("old", QueuePolicy { retention: Some(Delay::ZERO), ..none() }),
    ];
    let dead = claim("old").await?;
    other.settle(&[(dead.receipt(), Verdict::dead("no"))]).await?;
    let mut expected = Policies::default();
    for (name, policy) in set {
        stage.set_policy(name, policy.clone()).await?;
        expected.set(pattern(name)?, policy);
    }
    ensure_eq!(P9, "policies", other.policies().await?, expected);
    for (pattern, _) in expected.iter() {
        let name = queue(&pattern.to_string())?;
        ensure_eq!(
            P9,
            format!("what holds for {name}"),
            other.policy(&name).await?,
            expected.effective(&name)
        );
    }
    other.enqueue(&[new_job("paused").build()?]).await?;
    ensure_eq!(P9, "leased from a paused queue", other.dequeue(&request_named(&["paused"], 9)?).await?, []);
    let job = claim("lease").await?;
    let until = job.lease.as_ref().map(|lease| lease.until).unwrap_or_default();
    let limit = time::later(stage.now().await?, HOUR / 2);
    ensure!(P9, until <= limit, "a lease with a max_lease of half an hour ends at {until}, not by {limit}");
    let job = claim("backoff").await?;
    let from = stage.now().await?;
    other.settle(&[(job.receipt(), Verdict::retry("no"))]).await?;
    let at = stage.live(job.id).await?.available_at;
    ensure!(P9, at >= time::later(from, 5 * HOUR), "a retry with a backoff of five hours waits until {at}");
    let answers = other.enqueue(&[new_job("attempts").build()?]).await?;
    ensure_eq!(P9, "max_attempts", stage.live(answers[0].id).await?.max_attempts.get(), 2);
    let job = claim("archive").await?;
    other.settle(&[(job.receipt(), Verdict::done())]).await?;
    ensure_eq!(P9, "kept with dead_only", stage.store.get(job.id).await?, None);
    let job = claim("expiry").await?;
    stage.age(HOUR).await?;
    let from = stage.now().await?;
    other.reclaim(leasehold_core::BatchSize::MAX).await?;
    let at = stage.live(job.id).await?.available_at;
    ensure!(P9, at >= time::later(from, 5 * HOUR), "reclaimed with on_expiry backoff it waits until {at}");
    other.prune(&leasehold_core::Prune::by_retention(leasehold_core::BatchSize::MAX)).await?;
    ensure_eq!(P9, "kept with a retention of nothing", stage.store.get(dead.id).await?, None);
    Ok(())
}

async fn a_prefix_changes_what_holds_for_queues_with_a_policy_of_their_own(stage: Stage) -> Outcome {
    let attempts = |attempts| -> Outcome<QueuePolicy> {
        Ok(QueuePolicy { max_attempts: Some(MaxAttempts::new(attempts)?), ..QueuePolicy::default() })
    };
    stage
        .set_policy("q", QueuePolicy { max_lease: Some(lease_for(HOUR)?), ..QueuePolicy::default() })
        .await?;
    stage.enqueue(new_job("q")).await?;
    for (policy, expected) in [(attempts(2)?, 2), (attempts(3)?, 3), (QueuePolicy::default(), 5)] {
        stage.set_policy("*", policy).await?;
        let id = stage.enqueue(new_job("q")).await?;
        ensure_eq!(P8, "max_attempts by a prefix", stage.live(id).await?.max_attempts.get(), expected);
    }
    for wide in [paused(), QueuePolicy::default()] {
        stage.set_policy("*", wide.clone()).await?;
        let count = stage.claim("q", 1).await?.len();
        ensure_eq!(
            P8,
            format!("leased with {wide:?} for all queues"),
            count,
            usize::from(wide.paused.is_none())
        );
    }
    Ok(())
}
