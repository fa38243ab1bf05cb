//! The pure functions, for all inputs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Backoff, Facts, JobState, Json, MaxAttempts, Policies, Problem, QueueName, QueuePattern, QueuePolicy,
    RateLimit, time,
};
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

const CENTURY: u64 = 36_525 * 24 * 60 * 60;

fn instant() -> impl Strategy<Value = DateTime<Utc>> {
    // From 1900 to 2200, and often the same few seconds, so that times meet.
    prop_oneof![0_i64..5, -2_208_988_800_i64..7_258_118_400]
        .prop_map(|seconds| DateTime::from_timestamp(seconds, 0).unwrap())
}

fn backoff() -> impl Strategy<Value = Backoff> {
    let jitter = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    (0..=CENTURY, jitter, 0..=CENTURY, 0..=CENTURY).prop_map(|(base, jitter, a, b)| {
        let seconds = Duration::from_secs;
        Backoff::new(seconds(base), jitter, seconds(a.min(b)), seconds(a.max(b))).unwrap()
    })
}

/// Small ones, and those at the edges of the integers that could hold them.
fn exponent() -> impl Strategy<Value = String> {
    let edge =
        prop_oneof![3 => Just(i64::MAX as u128), 1 => Just(u64::MAX as u128), 1 => Just(i128::MAX as u128)];
    let near = (edge, 0_u128..20, any::<bool>());
    let near = near.prop_map(|(edge, by, is_above)| if is_above { edge + by } else { edge - by }.to_string());
    prop_oneof![2 => near, 1 => (0_u32..400).prop_map(|small| small.to_string()), 1 => "0{0,30}[0-9]{1,60}"]
}

proptest! {
    /// The table of the design, row by row, in another way than the code has it.
    #[test]
    fn every_job_is_in_one_state(
        lease in proptest::option::of(instant()), attempts in 0_u32..6, max in 1_u32..5, at in instant(), now in instant(),
    ) {
        let max_attempts = MaxAttempts::new(max).unwrap();
        let state = Facts { lease_until: lease, attempts, max_attempts, available_at: at }.state(now);
        let leased = lease.is_some();
        let spent = attempts >= max;
        let rules = [
            (JobState::Running, leased && lease > Some(now)),
            (JobState::Expired, leased && lease <= Some(now)),
            (JobState::Exhausted, !leased && spent),
            (JobState::Scheduled, !leased && !spent && at > now && attempts == 0),
            (JobState::Retrying, !leased && !spent && at > now && attempts > 0),
            (JobState::Ready, !leased && !spent && at <= now),
        ];
        let holding: Vec<_> = rules.iter().filter(|(_, holds)| *holds).map(|(state, _)| *state).collect();
        prop_assert_eq!(holding, vec![state]);
    }

    /// Total, within its bounds, never negative, never a panic: for every number of attempts and every random number.
    #[test]
    fn backoff_is_total_and_bounded(backoff in backoff(), attempts in any::<u32>(), random in any::<f64>()) {
        let delay = backoff.delay(attempts, random);
        prop_assert!(backoff.min() <= delay && delay <= backoff.max());
        let (shortest, longest) = backoff.bounds(attempts);
        prop_assert!(shortest <= delay && delay <= longest);
    }

    /// Monotone in the attempts and in the random number.
    #[test]
    fn backoff_is_monotone(backoff in backoff(), attempts in 0_u32..2000, low in 0.0..=1.0_f64, high in 0.0..=1.0_f64) {
        let (low, high) = (low.min(high), low.max(high));
        prop_assert!(backoff.delay(attempts, low) <= backoff.delay(attempts, high));
        prop_assert!(backoff.delay(attempts, low) <= backoff.delay(attempts + 1, low));
    }

    /// Whoever asks whenever: no window has more leases than the burst and what the rate brings in it.
    #[test]
    fn a_bucket_never_gives_too_much(
        rate in prop_oneof![0.01..5.0_f64, 0.01..10_000.0_f64], burst in 1_u32..50, steps in proptest::collection::vec((0_u64..5_000_000, 0_u32..60), 1..60),
    ) {
        let limit = RateLimit::new(rate, burst).unwrap();
        let start = DateTime::from_timestamp(1_000_000_000, 0).unwrap();
        let (mut now, mut full_at, mut granted) = (start, None, 0_u64);
        for (micros, wanted) in steps {
            now = time::later(now, Duration::from_micros(micros));
            let taken = limit.tokens(full_at, now).min(wanted);
            if limit.tokens(full_at, now) == 0 {
                let next = limit.next_token_at(full_at, now);
                prop_assert!(next > now, "no token, but the next is said to be there");
                prop_assert!(limit.tokens(full_at, next) >= 1, "the next token is not there when it was said to be");
            }
            full_at = Some(limit.take(full_at, now, taken));
            granted += u64::from(taken);
            let allowed = f64::from(burst) + time::between(start, now).as_secs_f64() * rate;
            // A bucket is kept in whole microseconds: at most half a percent, and one token early.
            prop_assert!(granted as f64 <= allowed * 1.005 + 1.0, "{granted} granted, {allowed} allowed");
        }
    }

    /// The clock was set back, so that the bucket's time lies anywhere in the future: it is full after the time of a burst at the latest.
    #[test]
    fn a_bucket_fills_in_the_time_of_a_burst(rate in 0.001..10_000.0_f64, burst in 1_u32..1000, ahead in 0_u64..1 << 50, taken in 0_u32..3) {
        let limit = RateLimit::new(rate, burst).unwrap();
        let now = DateTime::from_timestamp(1_000_000_000, 0).unwrap();
        let found = Some(time::later(now, Duration::from_micros(ahead)));
        let corrected = limit.corrected(found, now);
        let full_at = corrected.or(found);
        prop_assert_eq!(limit.corrected(full_at, now), None, "corrected twice");
        prop_assert_eq!(limit.tokens(found, now), limit.tokens(full_at, now));
        let slack = Duration::from_millis(1001);
        let fills_in = Duration::from_secs_f64(f64::from(burst) / rate) + slack;
        let token_in = Duration::from_secs_f64(1.0 / rate) + slack;
        prop_assert!(limit.next_token_at(found, now) <= time::later(now, token_in), "the next token is told too late");
        prop_assert!(limit.tokens(full_at, time::later(now, token_in)) >= 1, "the next token comes too late");
        prop_assert_eq!(limit.tokens(full_at, time::later(now, fills_in)), burst, "it fills too late");
        // What is taken goes on from what is in the bucket.
        let taken = taken.min(limit.tokens(full_at, now));
        prop_assert!(limit.take(full_at, now, taken) <= time::later(now, fills_in), "{taken} were taken");
    }

    /// Whatever exponent stands in a number: it is kept as the number that it is, or refused.
    #[test]
    fn odd_exponents_are_kept_or_refused(
        mantissa in "-?(0|[1-9][0-9]{0,20})([.][0-9]{1,20})?", sign in "[-+]", exponent in exponent(),
    ) {
        let number = format!("{mantissa}e{sign}{exponent}");
        let is_zero = !mantissa.contains(|digit| matches!(digit, '1'..='9'));
        match Json::parse(&number) {
            Ok(json) => {
                prop_assert_eq!(json.to::<f64>().unwrap(), number.parse::<f64>().unwrap());
                prop_assert_eq!(Json::parse(json.as_str()).unwrap(), json);
            }
            Err(refused) => {
                prop_assert!(!is_zero);
                prop_assert_eq!(refused.problem, Problem::InexactNumber { number });
            }
        }
    }

    /// Text that is refused or kept: what is kept comes back as the same value.
    #[test]
    fn documents_come_back_equal(text in ".{0,40}", number in any::<f64>(), integer in any::<i64>()) {
        if let Ok(json) = Json::new(&(&text, integer)) {
            prop_assert_eq!(json.to::<(String, i64)>().unwrap(), (text.clone(), integer));
            prop_assert_eq!(Json::parse(json.as_str()).unwrap(), json);
        } else {
            prop_assert!(text.contains('\0'));
        }
        match Json::new(&number) {
            Ok(json) => prop_assert_eq!(json.to::<f64>().unwrap(), number),
            Err(_) => prop_assert!(!number.is_finite()),
        }
    }

    /// Each field is decided by the most specific policy that says anything about it.
    #[test]
    fn the_most_specific_policy_decides(said in proptest::collection::vec(proptest::option::of(any::<bool>()), 4)) {
        let patterns = ["*", "a*", "ab*", "abc"].map(|pattern| pattern.parse::<QueuePattern>().unwrap());
        let rows = patterns.into_iter().zip(&said);
        let rows = rows.map(|(pattern, paused)| (pattern, QueuePolicy { paused: *paused, ..QueuePolicy::default() }));
        let policies = Policies::new(rows);
        let expected = said.iter().rev().flatten().next().copied().unwrap_or_default();
        prop_assert_eq!(policies.effective(&QueueName::new("abc").unwrap()).paused, expected);
        prop_assert_eq!(policies.effective(&QueueName::new("zzz").unwrap()).paused, said[0].unwrap_or_default());
    }
}
