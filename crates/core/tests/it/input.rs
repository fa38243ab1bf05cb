//! Bad input of every kind, as a table: each is refused with its field and its limit, before any backend sees it.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::{
    Backoff, BatchSize, Capabilities, ConcurrencyLimit, Delay, Dequeue, Headers, IdempotencyKey, Invalid,
    Json, Kind, LeaseFor, MaxAttempts, NewJob, Problem, Prune, QueueName, QueuePattern, Queues, RateLimit,
    Receipt, Schedule, StoreError, UniqueKey, Verdict, WorkerId, backend,
};

type Attempt = fn() -> Result<(), Invalid>;

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// What is tried, the field that the refusal must name, and how it must read.
const REFUSED: &[(&str, &str, Attempt)] = &[
    ("queue", "queue must not be empty", || QueueName::new("").map(drop)),
    ("queue", "queue is 129 bytes long, the limit is 128", || QueueName::new(long(129)).map(drop)),
    ("queue", "queue must be printable ASCII, byte 1 is not", || QueueName::new("a\nb").map(drop)),
    ("queue", "queue must be printable ASCII, byte 1 is not", || QueueName::new("aéb").map(drop)),
    ("queue", "queue must be printable ASCII, byte 0 is not", || QueueName::new("\u{7f}").map(drop)),
    ("queue", "queue must be printable ASCII, byte 0 is not", || QueueName::new("\0").map(drop)),
    ("queue", "queue must not contain '*', which is reserved for patterns", || {
        QueueName::new("a*").map(drop)
    }),
    ("queue", "queue must not contain '*', which is reserved for patterns", || {
        "a*b*".parse::<QueuePattern>().map(drop)
    }),
    ("queue", "queue is 129 bytes long, the limit is 128", || {
        format!("{}*", long(129)).parse::<QueuePattern>().map(drop)
    }),
    ("queues", "queues must not be empty", || Queues::named([] as [&str; 0]).map(drop)),
    ("queues", "queues has 10001 elements, the limit is 10000", || {
        Queues::named((0..10_001).map(|n| n.to_string())).map(drop)
    }),
    ("queue", "queue must not be empty", || Queues::named(["a", ""]).map(drop)),
    ("kind", "kind must not be empty", || Kind::new("").map(drop)),
    ("kind", "kind is 129 bytes long, the limit is 128", || Kind::new(long(129)).map(drop)),
    ("kind", "kind must be printable ASCII, byte 4 is not", || Kind::new("kind\t").map(drop)),
    ("worker", "worker must not be empty", || WorkerId::new("").map(drop)),
    ("worker", "worker is 200 bytes long, the limit is 128", || WorkerId::new(long(200)).map(drop)),
    ("worker", "worker must be printable ASCII, byte 0 is not", || WorkerId::new("ü").map(drop)),
    ("unique_key", "unique_key must not be empty", || UniqueKey::new("").map(drop)),
    ("unique_key", "unique_key is 256 bytes long, the limit is 255", || {
        UniqueKey::new("é".repeat(128)).map(drop)
    }),
    ("unique_key", "unique_key must not contain the character U+0000", || UniqueKey::new("a\0").map(drop)),
    ("idempotency_key", "idempotency_key must not be empty", || IdempotencyKey::new("").map(drop)),
    ("idempotency_key", "idempotency_key is 256 bytes long, the limit is 255", || {
        IdempotencyKey::new(long(256)).map(drop)
    }),
    ("retention", "retention is 3155760001s, allowed is 0ns to 3155760000s", || {
        IdempotencyKey::new("k")?.retention(Duration::from_secs(3_155_760_001)).map(drop)
    }),
    ("limit", "limit is 0, allowed is 1 to 10000", || BatchSize::new(0).map(drop)),
    ("limit", "limit is 10001, allowed is 1 to 10000", || BatchSize::new(10_001).map(drop)),
    ("max_attempts", "max_attempts is 0, allowed is 1 to 1000", || MaxAttempts::new(0).map(drop)),
    ("max_attempts", "max_attempts is 1001, allowed is 1 to 1000", || MaxAttempts::new(1001).map(drop)),
    ("lease_for", "lease_for is 999µs, allowed is 1ms to 86400s", || {
        LeaseFor::new(Duration::from_micros(999)).map(drop)
    }),
    ("lease_for", "lease_for is 86401s, allowed is 1ms to 86400s", || {
        LeaseFor::new(Duration::from_secs(86_401)).map(drop)
    }),
    ("delay", "delay is 3155760001s, allowed is 0ns to 3155760000s", || {
        Delay::new(Duration::from_secs(3_155_760_001)).map(drop)
    }),
    ("delay", "delay is 18446744073709551615.999999999s, allowed is 0ns to 3155760000s", || {
        Delay::new(Duration::MAX).map(drop)
    }),
    ("concurrency_limit", "concurrency_limit is 0, allowed is 1 to 1000000", || {
        ConcurrencyLimit::new(0).map(drop)
    }),
    ("rate_per_sec", "rate_per_sec is 0, allowed is 0.001 to 10000", || RateLimit::new(0.0, 1).map(drop)),
    ("rate_per_sec", "rate_per_sec is NaN, allowed is 0.001 to 10000", || {
        RateLimit::new(f64::NAN, 1).map(drop)
    }),
    ("rate_per_sec", "rate_per_sec is inf, allowed is 0.001 to 10000", || {
        RateLimit::new(f64::INFINITY, 1).map(drop)
    }),
    ("rate_burst", "rate_burst is 0, allowed is 1 to 1000000", || RateLimit::new(1.0, 0).map(drop)),
    ("backoff_jitter", "backoff_jitter is 1.1, allowed is 0 to 1", || backoff(1, 1.1, 1, 2)),
    ("backoff_jitter", "backoff_jitter is NaN, allowed is 0 to 1", || backoff(1, f64::NAN, 1, 2)),
    ("backoff_max", "backoff_max is 1s, allowed is 2s to 3155760000s", || backoff(1, 0.0, 2, 1)),
    ("backoff_base", "backoff_base is 9999999999s, allowed is 0ns to 3155760000s", || {
        backoff(9_999_999_999, 0.0, 1, 2)
    }),
    ("backoff_min", "backoff_min is 9999999999s, allowed is 0ns to 3155760000s", || {
        backoff(1, 0.0, 9_999_999_999, 2)
    }),
    ("header_name", "header_name must not be empty", || Headers::new().insert("", "v")),
    ("header_name", "header_name is 129 bytes long, the limit is 128", || {
        Headers::new().insert(long(129), "v")
    }),
    ("header_name", "header_name must be printable ASCII, byte 0 is not", || Headers::new().insert("é", "v")),
    ("header_value", "header_value must not contain the character U+0000", || {
        Headers::new().insert("n", "a\0b")
    }),
    ("headers", "headers is 16385 bytes long, the limit is 16384", || {
        Headers::new().insert("n", long(16_384))
    }),
    ("headers", "headers has 65 elements, the limit is 64", many_headers),
    ("receipt", "receipt must have the form job@epoch", || "17".parse::<Receipt>().map(drop)),
    ("receipt", "receipt must have the form job@epoch", || "17@x".parse::<Receipt>().map(drop)),
    (
        "at",
        "at is +10000-01-01 00:00:00 UTC, allowed is any time in the past to 9999-12-31 23:59:59.999999 UTC",
        too_late,
    ),
    ("older_than", "older_than is 9999999999s, allowed is 0ns to 3155760000s", || {
        Prune::older_than(Duration::from_secs(9_999_999_999), BatchSize::ONE).map(drop)
    }),
    ("json", "json must not contain the character U+0000", || Json::new("a\0").map(drop)),
    ("json", "json is not JSON: expected value at line 1 column 1", || Json::parse("?").map(drop)),
    ("json", "json contains the number 1e400, which cannot be kept exactly", || {
        Json::parse("[1e400]").map(drop)
    }),
    (
        "json",
        "json contains the number 340282366920938463463374607431768211455, which cannot be kept exactly",
        || Json::new(&u128::MAX).map(drop),
    ),
    ("json", "json contains the number NaN, which cannot be kept exactly", || Json::new(&f64::NAN).map(drop)),
    ("json", "json is nested deeper than 64 levels", || Json::parse(&"[".repeat(65)).map(drop)),
    ("json", "json is 67108867 bytes long, the limit is 67108864", || {
        Json::new(&long((64 << 20) + 1)).map(drop)
    }),
    // What a builder was given wrong is told by build(), the first thing first.
    ("queue", "queue must not be empty", || NewJob::builder("", "").build().map(drop)),
    ("kind", "kind must not be empty", || NewJob::builder("q", "").priority(1).build().map(drop)),
    ("payload", "payload contains the number inf, which cannot be kept exactly", || {
        job().payload(&f32::INFINITY).build().map(drop)
    }),
    ("payload", "payload must not contain the character U+0000", || {
        job().payload(&BTreeMap::from([("k\0", 1)])).build().map(drop)
    }),
    ("unique_key", "unique_key must not be empty", || job().unique_key("").max_attempts(0).build().map(drop)),
    ("delay", "delay is 9999999999s, allowed is 0ns to 3155760000s", || {
        job().delay(Duration::from_secs(9_999_999_999)).build().map(drop)
    }),
    ("max_attempts", "max_attempts is 0, allowed is 1 to 1000", || job().max_attempts(0).build().map(drop)),
    ("header_name", "header_name must not be empty", || job().header("", "").build().map(drop)),
    ("worker", "worker must not be empty", || Dequeue::new("q", "").map(drop)),
    ("limit", "limit is 0, allowed is 1 to 10000", || Dequeue::new("q", "w")?.limit(0).map(drop)),
    ("lease_for", "lease_for is 0ns, allowed is 1ms to 86400s", || {
        Dequeue::new("q", "w")?.lease_for(Duration::ZERO).map(drop)
    }),
    ("result", "result must not contain the character U+0000", || Verdict::done_with("\0").map(drop)),
    ("delay", "delay is 9999999999s, allowed is 0ns to 3155760000s", || {
        Verdict::retry_after("e", Duration::from_secs(9_999_999_999)).map(drop)
    }),
    ("delay", "delay is 9999999999s, allowed is 0ns to 3155760000s", || {
        Verdict::snooze(Duration::from_secs(9_999_999_999)).map(drop)
    }),
];

fn job() -> leasehold_core::NewJobBuilder {
    NewJob::builder("q", "k")
}

fn backoff(base: u64, jitter: f64, min: u64, max: u64) -> Result<(), Invalid> {
    Backoff::new(Duration::from_secs(base), jitter, Duration::from_secs(min), Duration::from_secs(max))
        .map(drop)
}

fn many_headers() -> Result<(), Invalid> {
    let mut headers = Headers::new();
    (0..65).try_for_each(|number| headers.insert(number.to_string(), ""))
}

fn too_late() -> Result<(), Invalid> {
    Schedule::at("+10000-01-01T00:00:00Z".parse().unwrap()).map(drop)
}

#[test]
fn bad_input_is_refused_with_its_field_and_limit() {
    for (field, message, attempt) in REFUSED {
        let refusal = attempt().expect_err(message);
        assert_eq!((refusal.field, refusal.to_string().as_str()), (*field, *message));
        // As an error of a store it reads the same.
        assert_eq!(StoreError::from(refusal).to_string(), *message);
    }
}

#[test]
fn what_is_just_within_the_limits_is_accepted() {
    QueueName::new(long(128)).unwrap();
    QueueName::new(" ~").unwrap();
    UniqueKey::new("é".repeat(127)).unwrap();
    UniqueKey::new(" \t\n").unwrap();
    BatchSize::new(10_000).unwrap();
    MaxAttempts::new(1000).unwrap();
    LeaseFor::new(Duration::from_millis(1)).unwrap();
    LeaseFor::new(Duration::from_secs(86_400)).unwrap();
    Delay::new(Duration::ZERO).unwrap();
    Headers::new().insert("n", long(16_383)).unwrap();
    Json::new(&long((64 << 20) - 2)).unwrap();
    Queues::named((0..10_000).map(|number| number.to_string())).unwrap();
    Schedule::at("9999-12-31T23:59:59.999999Z".parse().unwrap()).unwrap();
    RateLimit::new(10_000.0, 1_000_000).unwrap();
    IdempotencyKey::new("k").unwrap().retention(Duration::from_secs(3_155_760_000)).unwrap();
    IdempotencyKey::new("k").unwrap().retention(Duration::ZERO).unwrap();
}

#[test]
fn the_retention_is_no_part_of_an_idempotency_key() {
    let key = IdempotencyKey::new("k").unwrap();
    assert_eq!(key.kept_for(), Duration::from_secs(30 * 24 * 60 * 60));
    let short = key.clone().retention(Duration::from_nanos(1_500)).unwrap();
    assert_eq!(short.kept_for(), Duration::from_micros(1));
    assert_eq!((&short, short.cmp(&key)), (&key, std::cmp::Ordering::Equal));
    assert_eq!((short.to_string(), format!("{short:?}")), (key.to_string(), format!("{key:?}")));
    assert!(std::collections::HashSet::from([key]).contains("k"));
    let written = serde_json::to_string(&short).unwrap();
    assert_eq!(written, "\"k\"");
    assert_eq!(serde_json::from_str::<IdempotencyKey>(&written).unwrap(), short);
}

#[test]
fn only_a_prune_without_restrictions_forgets_keys() {
    let any = Prune::by_retention(BatchSize::ONE);
    assert!(any.forgets_keys());
    assert!(Prune::older_than(Duration::ZERO, BatchSize::ONE).unwrap().forgets_keys());
    let restricted = [
        Prune { queues: "q".parse().unwrap(), ..any.clone() },
        Prune { queues: "q*".parse().unwrap(), ..any.clone() },
        Prune { statuses: Some(Vec::new()), ..any.clone() },
        Prune { ids: Some(Vec::new()), ..any },
    ];
    assert!(restricted.iter().all(|request| !request.forgets_keys()));
}

#[test]
fn documents_and_batches_are_refused_by_what_a_backend_calls_first() {
    let small = Capabilities { payload_limit: 10, ..Capabilities::minimal() };
    let text = Json::new("123456789").unwrap();
    let refusals = [
        ("payload", backend::check_enqueue(&[job().payload("123456789").build().unwrap()], &small)),
        ("result", backend::check_verdict(&Verdict::Done(text.clone()), &small)),
        ("error", backend::check_verdict(&Verdict::Dead { error: text.clone() }, &small)),
        ("reason", backend::check_verdict(&Verdict::Discard { reason: text }, &small)),
    ];
    for (field, refusal) in refusals {
        let Err(StoreError::Invalid(invalid)) = refusal else { panic!("{field} was accepted") };
        assert_eq!(invalid, Invalid::new(field, Problem::TooLong { bytes: 11, limit: 10 }));
    }
    for usual in [Capabilities::minimal(), Capabilities::full()] {
        let payload = |bytes: usize| [job().payload(&long(bytes - 2)).build().unwrap()];
        backend::check_enqueue(&payload(1_048_576), &usual).unwrap();
        assert!(backend::check_enqueue(&payload(1_048_577), &usual).is_err());
    }
    let many = vec![job().build().unwrap(); 10_001];
    let Err(StoreError::Invalid(invalid)) = backend::check_enqueue(&many, &small) else { panic!("accepted") };
    assert_eq!(invalid, Invalid::new("jobs", Problem::TooMany { count: 10_001, limit: 10_000 }));
}
