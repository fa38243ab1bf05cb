//! Small types: what is put in comes out, and what is written can be read.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use chrono::DateTime;
use leasehold_core::contract::{self, Clause};
use leasehold_core::{
    Backoff, BatchSize, Capabilities, ConcurrencyLimit, Delay, Epoch, EventKind, Fate, FinalStatus, Headers,
    IdempotencyKey, Invalid, JobId, JobState, Json, MaxAttempts, NewJob, Outcome, Policies, Problem,
    QueueName, QueueOrder, QueuePattern, QueuePolicy, Queues, RateLimit, Receipt, Record, Schedule,
    SettleOutcome, StoreError, Verdict, backend,
};

#[test]
fn every_name_is_read_as_what_it_was_written_for() {
    for state in JobState::ALL {
        assert_eq!(state.to_string().parse(), Ok(state));
    }
    for status in FinalStatus::ALL {
        assert_eq!(status.to_string().parse(), Ok(status));
    }
    for kind in EventKind::ALL {
        assert_eq!(EventKind::named(&kind.to_string()), Some(kind));
    }
    for clause in contract::ALL {
        assert_eq!(Clause::by_id(clause.id), Some(*clause));
        assert_eq!(clause.to_string(), format!("{}: {}", clause.id, clause.promise));
        assert_eq!(format!("{clause:?}"), clause.id);
    }
    assert!("other".parse::<JobState>().is_err() && "other".parse::<FinalStatus>().is_err());
    assert_eq!((EventKind::named("other"), Clause::by_id("Z1")), (None, None));
    assert_eq!(FinalStatus::ALL.map(FinalStatus::as_str), ["completed", "dead_letter", "discarded"]);
}

#[test]
fn numbers_come_out_as_they_were_put_in() {
    let receipt = Receipt { job: JobId::new(17), epoch: Epoch::new(4) };
    assert_eq!((receipt.to_string().as_str(), "17@4".parse()), ("17@4", Ok(receipt)));
    assert_eq!((JobId::new(17).to_string().as_str(), "17".parse()), ("17", Ok(JobId::new(17))));
    assert_eq!((Epoch::new(4).to_string().as_str(), Epoch::new(4).next()), ("4", Epoch::new(5)));
    assert_eq!((JobId::new(17).get(), Epoch::new(4).get()), (17, 4));
    let size = BatchSize::new(7).unwrap();
    assert_eq!((size.get(), size.as_usize()), (7, 7));
    assert_eq!((BatchSize::ONE.get(), BatchSize::MAX.get()), (1, 10_000));
    let limit = ConcurrencyLimit::new(7).unwrap();
    assert_eq!((limit.get(), u32::from(limit), ConcurrencyLimit::try_from(7)), (7, 7, Ok(limit)));
    assert_eq!((MaxAttempts::new(7).unwrap().get(), MaxAttempts::DEFAULT.get()), (7, 5));
    let rate = RateLimit::new(2.5, 9).unwrap();
    assert_eq!((rate.per_sec(), rate.burst()), (2.5, 9));
    let [base, min, max] = [3, 2, 9].map(Duration::from_secs);
    let backoff = Backoff::new(base, 0.25, min, max).unwrap();
    assert_eq!([backoff.base(), backoff.min(), backoff.max()].map(Delay::get), [base, min, max]);
    assert_eq!(backoff.jitter(), 0.25);
}

#[test]
fn what_a_builder_was_told_is_what_a_job_becomes() {
    let second = Duration::from_secs(1);
    let new = NewJob::builder("q", "k")
        .payload("p")
        .priority(-3)
        .unique_key("u")
        .delay(second)
        .max_attempts(7)
        .header("a", "1")
        .header("b", "2")
        .build()
        .unwrap();
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let job = backend::accepted(17.into(), &new, &Default::default(), now);
    assert_eq!((job.id, job.queue.as_str(), job.kind.as_str()), (17.into(), "q", "k"));
    assert_eq!((job.priority, job.payload.as_str(), job.max_attempts.get()), (-3, "\"p\"", 7));
    assert_eq!(job.unique_key.as_ref().map(|key| key.as_str()), Some("u"));
    assert_eq!(job.headers.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
    assert_eq!((job.available_at, job.created_at, job.updated_at), (now + second, now, now));
    assert_eq!((job.attempts, job.epoch, job.redrives), (0, Epoch::ZERO, 0));
    assert_eq!((&job.lease, job.first_leased_at, &job.last_error), (&None, None, &None));
    assert_eq!((job.leased_for(), job.receipt().job), (None, 17.into()));

    let finished = backend::finished(job.clone(), Outcome::Completed { result: Json::null() }, now);
    assert_eq!((Record::Live(job).id(), Record::Finished(finished).id()), (17.into(), 17.into()));
}

#[test]
fn a_schedule_is_counted_from_now_and_never_in_the_past() {
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let second = Duration::from_secs(1);
    for (schedule, at) in [
        (Schedule::Now, now),
        (Schedule::after(second).unwrap(), now + second),
        (Schedule::at(now + second).unwrap(), now + second),
        (Schedule::at(now - second).unwrap(), now),
    ] {
        assert_eq!(schedule.available_at(now), at, "{schedule:?}");
    }
}

#[test]
fn headers_are_found_by_their_names() {
    let mut headers = Headers::new();
    assert!(headers.is_empty());
    headers.insert("trace", "7").unwrap();
    headers.insert("trace", "8").unwrap();
    headers.insert("user", "ada").unwrap();
    assert_eq!(
        (headers.get("trace"), headers.get("user"), headers.get("other")),
        (Some("8"), Some("ada"), None)
    );
    assert_eq!((headers.len(), headers.is_empty()), (2, false));
    assert_eq!(headers.iter().collect::<Vec<_>>(), [("trace", "8"), ("user", "ada")]);
    let map = BTreeMap::from(headers.clone());
    assert_eq!(Headers::try_from(map), Ok(headers));
}

#[test]
fn as_many_headers_as_are_allowed_are_accepted() {
    let mut headers = Headers::new();
    (0..64).for_each(|number| headers.insert(number.to_string(), "").unwrap());
    assert_eq!(headers.len(), 64);
    // Each name and each value counts.
    let mut large = Headers::new();
    large.insert("a".repeat(100), "b".repeat(8000)).unwrap();
    large.insert("c".repeat(100), "d".repeat(8184)).unwrap();
    let refused = large.insert("e", "").unwrap_err();
    assert_eq!(refused, Invalid::new("headers", Problem::TooLong { bytes: 16_385, limit: 16_384 }));
}

#[test]
fn queues_are_those_that_were_named_once_each() {
    let queue = |name: &str| QueueName::new(name).unwrap();
    let both = Queues::named(["b", "a", "b"]).unwrap();
    let Queues::Named(names) = &both else { panic!("{both:?}") };
    assert_eq!(names[..], [queue("a"), queue("b")]);
    assert_eq!(["a", "b", "c"].map(|name| both.contains(&queue(name))), [true, true, false]);
    let some: Queues = "a*".parse().unwrap();
    assert_eq!(["a", "ab", "b"].map(|name| some.contains(&queue(name))), [true, true, false]);
}

#[test]
fn idempotency_keys_are_ordered_by_their_text() {
    let key = |text: &str| IdempotencyKey::new(text).unwrap();
    assert_eq!(key("a").as_str(), "a");
    assert_eq!(key("a").partial_cmp(&key("b")), Some(Ordering::Less));
    assert_eq!((key("b").cmp(&key("a")), key("a") == key("b")), (Ordering::Greater, false));
}

#[test]
fn an_error_says_what_can_be_done_about_it() {
    let receipt = Receipt { job: JobId::new(1), epoch: Epoch::new(2) };
    let kinds = |error: &StoreError| [error.is_retryable(), error.is_unknown(), error.is_lease_lost()];
    for (error, text, expected) in [
        (StoreError::unavailable("op", "no"), "op: the store is unavailable", [true, false, false]),
        (StoreError::row_locked("op"), "op: the store is unavailable", [true, false, false]),
        (StoreError::old_snapshot("op", "no"), "op: the store is unavailable", [true, false, false]),
        (StoreError::unknown("op", "no"), "op: the answer was lost", [false, true, false]),
        (StoreError::lease_lost("op", receipt), "op: the lease 1@2 is lost", [false, false, true]),
        (StoreError::backend("op", "no"), "op failed", [false; 3]),
        (StoreError::corrupt("a row"), "corrupt data: a row", [false; 3]),
        (StoreError::conflict("why"), "conflict: why", [false; 3]),
        (
            StoreError::no_transaction("op"),
            "op needs an open transaction: none was opened, or the database has ended it",
            [false; 3],
        ),
        (StoreError::unsupported("that"), "this backend does not support that", [false; 3]),
    ] {
        assert_eq!((error.to_string().as_str(), kinds(&error)), (text, expected));
    }
}

#[test]
fn verdicts_carry_what_they_were_given() {
    let (error, after) = (Json::error("e"), Delay::new(Duration::from_secs(3)).unwrap());
    let retry_after = leasehold_core::RetryAfter::Delay(after);
    let retry = Verdict::Retry { error: error.clone(), after: retry_after };
    assert_eq!(Verdict::retry_after("e", Duration::from_secs(3)), Ok(retry));
    assert_eq!(Verdict::snooze(Duration::from_secs(3)), Ok(Verdict::Snooze { after }));
    assert_eq!(Verdict::dead("e"), Verdict::Dead { error });
    let reason = Json::new("a\u{fffd}b").unwrap();
    assert_eq!(Verdict::discard("a\0b"), Verdict::Discard { reason });
    assert_eq!(format!("{:?}", Json::error("e")), r#"{"error":"e"}"#);
}

#[test]
fn an_outcome_is_settled_lost_or_pending() {
    let receipt = Receipt { job: JobId::new(1), epoch: Epoch::new(2) };
    let settled = backend::settled(receipt, Fate::Completed);
    assert_eq!((settled.receipt(), settled.fate()), (receipt, Fate::Completed));
    for (outcome, is_lost, is_pending, proof) in [
        (backend::settled_outcome(receipt, Fate::Completed), false, false, Some(settled)),
        (SettleOutcome::LeaseLost, true, false, None),
        (SettleOutcome::Pending, false, true, None),
    ] {
        assert_eq!((outcome.is_lost(), outcome.is_pending()), (is_lost, is_pending), "{outcome:?}");
        assert_eq!(outcome.settled(), proof);
    }
}

#[test]
fn policies_are_replaced_as_a_whole_and_removed_by_an_empty_one() {
    let pattern = |text: &str| text.parse::<QueuePattern>().unwrap();
    let (paused, empty) =
        (QueuePolicy { paused: Some(true), ..QueuePolicy::default() }, QueuePolicy::default());
    let fifo = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
    let mut policies = Policies::new([(pattern("b"), empty.clone()), (pattern("b*"), paused.clone())]);
    policies.set(pattern("a"), empty.clone());
    assert_eq!((policies.len(), policies.is_empty()), (1, false));
    policies.set(pattern("a"), paused.clone());
    policies.set(pattern("c"), paused.clone());
    policies.set(pattern("a"), fifo.clone());
    assert_eq!(policies.len(), 3);
    let set = ["a", "b", "b*", "c"].map(|text| policies.set_for(&pattern(text)));
    assert_eq!(set, [fifo, empty.clone(), paused.clone(), paused]);
    let others = ["a", "b*", "c"].map(pattern);
    assert!(policies.iter().all(|(pattern, _)| others.contains(pattern)), "{policies:?}");
    others.into_iter().for_each(|pattern| policies.set(pattern, empty.clone()));
    assert_eq!((policies.len(), policies.is_empty(), policies), (0, true, Policies::default()));
}

#[test]
fn a_policy_is_refused_for_what_the_backend_does_not_keep() {
    let limit = Some(ConcurrencyLimit::new(1).unwrap());
    let with_limit = QueuePolicy { concurrency_limit: limit, ..QueuePolicy::default() };
    let with_rate = QueuePolicy { rate: Some(RateLimit::new(1.0, 1).unwrap()), ..QueuePolicy::default() };
    let with_order = |order| QueuePolicy { order: Some(order), ..QueuePolicy::default() };
    let paused = QueuePolicy { paused: Some(true), ..QueuePolicy::default() };
    let full = Capabilities::full();
    for (policy, without, feature) in [
        (paused, Capabilities { policies: false, ..full }, "policies"),
        (with_limit, Capabilities { concurrency_limit: false, ..full }, "concurrency limits"),
        (with_rate, Capabilities { rate_limit: false, ..full }, "rate limits"),
        (with_order(QueueOrder::Fifo), Capabilities { fifo: false, ..full }, "Fifo order"),
    ] {
        assert!(backend::check_policy(&policy, &full).is_ok(), "{policy:?}");
        assert!(backend::check_policy(&QueuePolicy::default(), &without).is_ok(), "{without:?}");
        let refusal = backend::check_policy(&policy, &without).unwrap_err();
        assert!(matches!(refusal, StoreError::Unsupported { feature: told } if told == feature), "{refusal}");
    }
    let no_fifo = Capabilities { fifo: false, ..full };
    assert!(backend::check_policy(&with_order(QueueOrder::Priority), &no_fifo).is_ok());
}

#[test]
fn a_delay_doubles_with_each_attempt_and_is_spread_to_either_side() {
    let seconds = Duration::from_secs;
    let backoff = Backoff::new(seconds(4), 0.25, seconds(1), seconds(1000)).unwrap();
    for (attempts, delays) in [(0, [3, 4, 5]), (1, [3, 4, 5]), (2, [6, 8, 10]), (3, [12, 16, 20])] {
        let drawn = [0.0, 0.5, 1.0].map(|random| backoff.delay(attempts, random).get());
        assert_eq!(drawn, delays.map(seconds), "attempt {attempts}");
        let (shortest, longest) = backoff.bounds(attempts);
        assert_eq!([shortest.get(), longest.get()], [drawn[0], drawn[2]]);
        let middle = [-0.1, 1.1, f64::NAN].map(|random| backoff.delay(attempts, random).get());
        assert_eq!(middle, [drawn[1]; 3], "no random number is one half");
    }
    let narrow = Backoff::new(seconds(4), 0.25, seconds(5), seconds(9)).unwrap();
    assert_eq!([1, 2, 3].map(|attempts| narrow.delay(attempts, 0.5).get()), [5, 8, 9].map(seconds));
}

#[test]
fn ids_are_limited_as_every_batch_is() {
    let ids = |count| vec![JobId::new(1); count];
    assert!(backend::check_ids(None).is_ok() && backend::check_ids(Some(&ids(10_000))).is_ok());
    let Err(StoreError::Invalid(invalid)) = backend::check_ids(Some(&ids(10_001))) else {
        panic!("accepted")
    };
    assert_eq!(invalid, Invalid::new("ids", Problem::TooMany { count: 10_001, limit: 10_000 }));
}

#[test]
fn an_empty_bucket_says_when_it_has_a_token() {
    let rate = RateLimit::new(10.0, 5).unwrap();
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let millis = Duration::from_millis;
    let full_at = Some(rate.take(None, now, 5));
    assert_eq!(full_at, Some(now + millis(500)));
    for (passed, tokens, next) in [(0, 0, 100), (99, 0, 100), (100, 1, 100), (250, 2, 250), (900, 5, 900)] {
        let at = now + millis(passed);
        assert_eq!(rate.tokens(full_at, at), tokens, "after {passed} ms");
        assert_eq!(rate.next_token_at(full_at, at), now + millis(next), "after {passed} ms");
    }
    assert_eq!(rate.next_token_at(None, now), now);
}
