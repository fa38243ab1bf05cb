//! The pure halves of the operations, as tables: what each makes of every field of a job.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::backend::{self, Applied};
use leasehold_core::{
    Archive, Backoff, Dequeue, EffectivePolicy, Epoch, Explanation, Fate, FinalStatus, FinishedJob, Headers,
    HeartbeatOutcome, Intervention, Job, Json, Kind, Lease, LeaseFor, MaxAttempts, OnExpiry, Outcome,
    QueueName, Receipt, ReceiptStatus, ReclaimFate, Reclaimed, Record, Schedule, UniqueKey, Verdict,
    WorkerId,
};

/// The n-th second of the day on which everything happens.
fn second(n: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + n, 0).unwrap()
}

const NOW: i64 = 1000;

fn now() -> DateTime<Utc> {
    second(NOW)
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn name(worker: &str) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

/// A job in its second lease, which passes ten seconds from now. No field has the value that a new job would have.
fn leased() -> Job {
    let mut headers = Headers::new();
    headers.insert("trace", "7").unwrap();
    Job {
        id: 17.into(),
        queue: QueueName::new("q").unwrap(),
        kind: Kind::new("k").unwrap(),
        priority: 3,
        unique_key: Some(UniqueKey::new("u").unwrap()),
        payload: Json::new("payload").unwrap(),
        headers,
        attempts: 2,
        max_attempts: MaxAttempts::new(3).unwrap(),
        available_at: second(5),
        lease: Some(Lease { until: second(NOW + 10), worker: name("w") }),
        epoch: Epoch::new(4),
        first_leased_at: Some(second(6)),
        last_error: Some(Json::error("first")),
        redrives: 1,
        created_at: second(1),
        updated_at: second(NOW - 50),
    }
}

fn waiting() -> Job {
    Job { lease: None, ..leased() }
}

fn finished(outcome: Outcome, last_error: Json) -> FinishedJob {
    let job = leased();
    FinishedJob {
        id: job.id,
        queue: job.queue,
        kind: job.kind,
        priority: 3,
        unique_key: job.unique_key,
        payload: job.payload,
        headers: job.headers,
        attempts: 2,
        max_attempts: job.max_attempts,
        epoch: Epoch::new(4),
        outcome,
        last_error: Some(last_error),
        redrives: 1,
        processed_by: Some(name("w")),
        created_at: second(1),
        started_at: Some(second(6)),
        finished_at: now(),
    }
}

fn policy() -> EffectivePolicy {
    let backoff = Backoff::new(seconds(7), 0.0, seconds(0), seconds(100)).unwrap();
    EffectivePolicy { backoff, ..EffectivePolicy::default() }
}

fn limited_to(lease: u64) -> EffectivePolicy {
    EffectivePolicy { max_lease: Some(LeaseFor::new(seconds(lease)).unwrap()), ..policy() }
}

#[test]
fn a_verdict_of_a_handler_that_ends_its_job_moves_it_to_the_history() {
    let apply = |verdict| backend::apply_verdict(leased(), verdict, &policy(), now(), 0.0);
    let (text, first, error) = (Json::new("why").unwrap(), Json::error("first"), Json::error("e"));
    let completed = Outcome::Completed { result: text.clone() };
    let discarded = Outcome::Discarded { reason: text };
    let dead = Outcome::DeadLetter { error: error.clone() };
    assert_eq!(
        apply(Verdict::done_with("why").unwrap()),
        Applied::Finished(finished(completed, first.clone()), Fate::Completed)
    );
    assert_eq!(
        apply(Verdict::discard("why")),
        Applied::Finished(finished(discarded, first), Fate::Discarded)
    );
    assert_eq!(apply(Verdict::dead("e")), Applied::Finished(finished(dead, error), Fate::DeadLettered));
}

#[test]
fn a_verdict_that_keeps_the_job_ends_its_lease_and_nothing_else_that_it_does_not_name() {
    let apply = |verdict| backend::apply_verdict(leased(), verdict, &policy(), now(), 0.0);
    let retried = |after: i64| {
        let available_at = second(NOW + after);
        let last_error = Some(Json::error("e"));
        let job = Job { lease: None, available_at, last_error, updated_at: now(), ..leased() };
        Applied::Live(job, Fate::Retrying { available_at })
    };
    assert_eq!(apply(Verdict::retry_after("e", seconds(30)).unwrap()), retried(30));
    // The second attempt is spent: 7 s, doubled once.
    assert_eq!(apply(Verdict::retry("e")), retried(14));

    let available_at = second(NOW + 30);
    let snoozed = Job { lease: None, available_at, attempts: 1, updated_at: now(), ..leased() };
    assert_eq!(
        apply(Verdict::snooze(seconds(30)).unwrap()),
        Applied::Live(snoozed, Fate::Snoozed { available_at })
    );
}

#[test]
fn a_retry_of_the_last_attempt_is_a_dead_letter() {
    let error = Json::error("e");
    for (attempts, dies) in [(2, false), (3, true), (4, true)] {
        let job = Job { attempts, ..leased() };
        let applied = backend::apply_verdict(job, Verdict::retry("e"), &policy(), now(), 0.0);
        let dead =
            FinishedJob { attempts, ..finished(Outcome::DeadLetter { error: error.clone() }, error.clone()) };
        assert_eq!(applied == Applied::Finished(dead, Fate::DeadLettered), dies, "{attempts}: {applied:?}");
    }
}

#[test]
fn a_lease_changes_what_the_contract_says_and_no_more() {
    for (policy, length) in [(policy(), 20), (limited_to(8), 8), (limited_to(50), 20)] {
        let request = Dequeue::new("q", "me").unwrap().lease_for(seconds(20)).unwrap();
        let mut job = waiting();
        backend::lease(&mut job, &request, &policy, now());
        let lease = Some(Lease { until: second(NOW + length), worker: name("me") });
        let expected = Job { lease, attempts: 3, epoch: Epoch::new(5), updated_at: now(), ..leased() };
        assert_eq!(job, expected);
        let mut new = Job { first_leased_at: None, ..waiting() };
        backend::lease(&mut new, &request, &policy, now());
        assert_eq!(new, Job { first_leased_at: Some(now()), ..expected });
    }
}

#[test]
fn a_heartbeat_makes_a_lease_longer_or_changes_nothing() {
    let lease = |until: i64| Some(Lease { until: second(NOW + until), worker: name("w") });
    // From how long it is left, for how long is asked, and how long is left then.
    for (left, asked, max, after) in
        [(10, 30, 99, 30), (10, 30, 15, 15), (10, 30, 5, 10), (10, 5, 99, 10), (10, 10, 99, 10)]
    {
        let mut job = Job { lease: lease(left), ..leased() };
        let asked = LeaseFor::new(seconds(asked)).unwrap();
        let outcome = backend::extend(&mut job, asked, &limited_to(max), now());
        let until = second(NOW + after);
        assert_eq!(outcome, HeartbeatOutcome::Extended { until, left: seconds(after as u64) });
        let updated_at = if after > left { now() } else { leased().updated_at };
        assert_eq!(job, Job { lease: lease(after), updated_at, ..leased() }, "{left} s, {asked:?} asked");
    }
    let asked = LeaseFor::new(seconds(30)).unwrap();
    for job in [Job { lease: lease(0), ..leased() }, Job { lease: lease(-1), ..leased() }, waiting()] {
        let mut extended = job.clone();
        assert_eq!(backend::extend(&mut extended, asked, &policy(), now()), HeartbeatOutcome::Lost);
        assert_eq!(extended, job);
    }
}

#[test]
fn an_intervention_takes_the_job_from_its_holder() {
    let apply = |job: &Job, word: &Intervention| backend::apply_intervention(job.clone(), word, now());
    let later = Intervention::RetryLater(Schedule::after(seconds(30)).unwrap());
    let available_at = second(NOW + 30);
    let moved = Job { available_at, updated_at: now(), ..waiting() };
    let taken = Job { epoch: Epoch::new(5), ..moved.clone() };
    assert_eq!(apply(&waiting(), &later), Some(Applied::Live(moved, Fate::Retrying { available_at })));
    assert_eq!(apply(&leased(), &later), Some(Applied::Live(taken, Fate::Retrying { available_at })));

    let reason = Json::new("why").unwrap();
    let discarded = finished(Outcome::Discarded { reason: reason.clone() }, Json::error("first"));
    let discard = Intervention::Discard { reason };
    let taken = FinishedJob { epoch: Epoch::new(5), ..discarded.clone() };
    let unheld = FinishedJob { processed_by: None, ..discarded };
    assert_eq!(apply(&leased(), &discard), Some(Applied::Finished(taken, Fate::Discarded)));
    assert_eq!(apply(&waiting(), &discard), Some(Applied::Finished(unheld, Fate::Discarded)));

    let waits = Job { available_at, ..waiting() };
    let promoted = Job { available_at: now(), updated_at: now(), ..waiting() };
    let fate = Fate::Retrying { available_at: now() };
    assert_eq!(apply(&waits, &Intervention::Promote), Some(Applied::Live(promoted, fate)));
    assert_eq!(apply(&waiting(), &Intervention::Promote), None, "it is Ready");
    assert_eq!(apply(&leased(), &Intervention::Promote), None, "it is Running");
}

#[test]
fn a_passed_lease_is_taken_away() {
    let expired = Json::error("lease_expired");
    for (on_expiry, after) in [(OnExpiry::RetryNow, 0), (OnExpiry::Backoff, 14)] {
        let policy = EffectivePolicy { on_expiry, ..policy() };
        let (applied, told) = backend::apply_reclaim(leased(), &policy, now(), 0.0);
        let available_at = second(NOW + after);
        let (epoch, last_error) = (Epoch::new(5), Some(expired.clone()));
        let job = Job { lease: None, available_at, epoch, last_error, updated_at: now(), ..leased() };
        assert_eq!(applied, Applied::Live(job, Fate::Retrying { available_at }));
        assert_eq!(told, Reclaimed::new(&leased(), ReclaimFate::Requeued { available_at }));
        assert_eq!(told.worker, Some(name("w")));
    }
}

#[test]
fn a_job_without_attempts_is_reclaimed_as_a_dead_letter() {
    let spent = Job { attempts: 3, ..leased() };
    let exhausted = Job { lease: None, ..spent.clone() };
    let unexplained = Job { last_error: None, ..exhausted.clone() };
    for (job, error, epoch) in [
        (spent, Json::error("lease_expired"), 5),
        (exhausted, Json::error("first"), 4),
        (unexplained, Json::error("attempts_exhausted"), 4),
    ] {
        let (applied, told) = backend::apply_reclaim(job.clone(), &policy(), now(), 0.0);
        let dead = FinishedJob {
            attempts: 3,
            epoch: Epoch::new(epoch),
            processed_by: job.lease.as_ref().map(|lease| lease.worker.clone()),
            ..finished(Outcome::DeadLetter { error: error.clone() }, error)
        };
        assert_eq!(applied, Applied::Finished(dead, Fate::DeadLettered));
        assert_eq!(told, Reclaimed::new(&job, ReclaimFate::DeadLettered));
    }
}

#[test]
fn a_redriven_job_begins_again_in_its_old_epoch() {
    let error = Json::error("e");
    let dead = finished(Outcome::DeadLetter { error: error.clone() }, error.clone());
    let expected = Job {
        attempts: 0,
        available_at: second(NOW + 1),
        last_error: Some(error),
        redrives: 2,
        updated_at: second(NOW + 1),
        ..waiting()
    };
    assert_eq!(backend::redriven(dead, second(NOW + 1)), expected);
}

#[test]
fn a_receipt_is_worth_what_became_of_its_job() {
    let of = |epoch: i64, record: Option<Record>| {
        ReceiptStatus::of(Receipt { job: 17.into(), epoch: Epoch::new(epoch) }, record.as_ref())
    };
    let done = || finished(Outcome::Completed { result: Json::null() }, Json::null());
    let new = Job { epoch: Epoch::ZERO, ..waiting() };
    assert_eq!(of(4, Some(Record::Live(leased()))), ReceiptStatus::Held { until: second(NOW + 10) });
    assert_eq!(of(4, Some(Record::Live(waiting()))), ReceiptStatus::Requeued);
    let completed = ReceiptStatus::Finished { status: FinalStatus::Completed };
    assert_eq!(of(4, Some(Record::Finished(done()))), completed);
    for stale in [
        of(3, Some(Record::Live(leased()))),
        of(3, Some(Record::Live(waiting()))),
        of(3, Some(Record::Finished(done()))),
        of(0, Some(Record::Live(new))),
        of(4, None),
    ] {
        assert_eq!(stale, ReceiptStatus::Gone);
    }
}

#[test]
fn a_job_explains_itself_as_far_as_it_can() {
    let paused = EffectivePolicy { paused: true, ..policy() };
    let later = Job { available_at: second(NOW + 9), ..waiting() };
    let new = Job { attempts: 0, ..later.clone() };
    let exhausted = Job { attempts: 3, ..waiting() };
    let (by, until) = (name("w"), second(NOW + 10));
    let told = |job: &Job, policy: &EffectivePolicy, at: i64| backend::explain_alone(job, policy, second(at));
    let running = Some(Explanation::Leased { by: by.clone(), until });
    let scheduled = Some(Explanation::Scheduled { until: second(NOW + 9) });
    let error = Some(Json::error("first"));
    let retrying = Some(Explanation::Retrying { until: second(NOW + 9), error });
    assert_eq!(told(&leased(), &paused, NOW), running);
    assert_eq!(told(&leased(), &paused, NOW + 10), Some(Explanation::LeaseExpired { by, since: until }));
    assert_eq!(told(&exhausted, &paused, NOW), Some(Explanation::Exhausted));
    assert_eq!(told(&waiting(), &paused, NOW), Some(Explanation::Paused));
    assert_eq!(told(&new, &policy(), NOW), scheduled);
    assert_eq!(told(&later, &policy(), NOW), retrying);
    assert_eq!(told(&waiting(), &policy(), NOW), None, "others are the reason");
}

#[test]
fn an_archive_of_dead_letters_keeps_nothing_else() {
    for status in FinalStatus::ALL {
        assert!(Archive::All.keeps(status), "{status}");
        assert_eq!(Archive::DeadOnly.keeps(status), status == FinalStatus::DeadLetter, "{status}");
    }
}

#[test]
fn a_receipt_is_good_for_its_job_in_its_epoch_while_it_is_leased() {
    let receipt = leased().receipt();
    assert_eq!(receipt, Receipt { job: 17.into(), epoch: Epoch::new(4) });
    assert_eq!((leased().leased_for(), waiting().leased_for()), (Some(seconds(60)), None));
    assert!(backend::is_held(&leased(), &receipt));
    assert!(!backend::is_held(&waiting(), &receipt));
    assert!(!backend::is_held(&leased(), &Receipt { job: 18.into(), ..receipt }));
    assert!(!backend::is_held(&leased(), &Receipt { epoch: Epoch::new(5), ..receipt }));
}
