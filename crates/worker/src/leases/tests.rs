//! However heartbeats go, a lease is believed in for as long as the store grants it.

use futures_util::FutureExt;
use leasehold_core::{Epoch, JobId, Json, Kind, Lease as Granted, MaxAttempts, QueueName, WorkerId};
use proptest::prelude::{Strategy, prop_oneof, proptest};

use super::*;

fn job(id: i64, lease: Duration) -> Arc<Job> {
    let now = chrono::DateTime::UNIX_EPOCH;
    Arc::new(Job {
        id: JobId::new(id),
        queue: QueueName::new("q").unwrap(),
        kind: Kind::new("k").unwrap(),
        priority: 0,
        unique_key: None,
        payload: Json::null(),
        headers: Default::default(),
        attempts: 1,
        max_attempts: MaxAttempts::new(5).unwrap(),
        available_at: now,
        lease: Some(Granted { until: now + lease, worker: WorkerId::new("w").unwrap() }),
        epoch: Epoch::new(1),
        first_leased_at: Some(now),
        last_error: None,
        redrives: 0,
        created_at: now,
        updated_at: now,
    })
}

#[derive(Debug, Clone)]
enum Event {
    Hold(u64),
    Beat { answered: bool, took: u64 },
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (3..10_000_u64).prop_map(Event::Hold),
        (proptest::bool::ANY, 0..2000_u64).prop_map(|(answered, took)| Event::Beat { answered, took }),
        (0..3000_u64).prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 1..100)
}

proptest! {
    /// However heartbeats go, a token fires at the end of its lease, counted from when it was last asked for, neither
    /// before nor after; and the heart never waits for longer than that.
    #[test]
    fn a_token_fires_when_its_time_has_run_out(events in events()) {
        let leases = Leases::default();
        let (mut now, mut ids, mut told) = (Instant::now(), 0, Vec::new());
        // Until when the store holds each lease, at least.
        let mut until: Vec<(Receipt, Instant, u64, CancellationToken)> = Vec::new();
        for event in events {
            match event {
                Event::Hold(length) => {
                    ids += 1;
                    let job = job(ids, Duration::from_millis(length));
                    let token = leases.hold(std::slice::from_ref(&job), now, |_| false).remove(0);
                    until.push((job.receipt(), now + Duration::from_millis(length), length, token));
                }
                Event::Beat { answered, took } => {
                    let (sent, beats) = (now, leases.due(now).beats.concat());
                    now += Duration::from_millis(took);
                    told.extend(leases.pass(now));
                    for receipt in beats {
                        let lease = until.iter_mut().find(|lease| lease.0 == receipt).unwrap();
                        if answered && lease.1 > now {
                            lease.1 = sent + Duration::from_millis(lease.2);
                            leases.extended(&receipt, sent, Duration::from_millis(lease.2));
                        } else {
                            leases.try_again(&receipt, now);
                        }
                    }
                }
                Event::Pass(millis) => now += Duration::from_millis(millis),
            }
            told.extend(leases.pass(now));
            for (receipt, end, _, token) in &until {
                assert_eq!(token.is_cancelled(), *end <= now, "{receipt} until {end:?} at {now:?}");
                let times = told.iter().filter(|lost| *lost == receipt).count();
                assert_eq!(times, usize::from(*end <= now), "{receipt} is told of");
            }
            let soonest = until.iter().map(|lease| lease.1).filter(|end| *end > now).min();
            let next = leases.due(now).next;
            assert!(soonest.is_none() || next.is_some_and(|next| Some(next) <= soonest), "the heart sleeps too long");
            leases.none_is_beating();
        }
    }
}

#[test]
fn a_handler_believes_in_its_lease_until_it_ends_or_the_lease_is_lost() {
    let leases = Leases::default();
    let jobs = [1, 2, 3].map(|id| job(id, Duration::from_secs(9)));
    leases.hold(&jobs, Instant::now(), |job| job.id == JobId::new(3));
    let [ended, lost, kept] = jobs.map(|job| job.receipt());
    leases.ended(&ended);
    leases.lose(&lost);
    assert_eq!([ended, lost, kept].map(|receipt| leases.is_running(&receipt)), [false, false, true]);
    assert_eq!([ended, lost, kept].map(|receipt| leases.is_transactional(&receipt)), [false, false, true]);
    leases.let_go([&kept]);
    assert!(!leases.is_running(&kept) && !leases.is_transactional(&kept));
}

#[test]
fn the_heart_is_woken_for_what_is_due_sooner_than_it_knows() {
    let (leases, now) = (Leases::default(), Instant::now());
    let is_woken = |id: i64, seconds: u64| {
        leases.hold(&[job(id, Duration::from_secs(seconds))], now, |_| false);
        leases.sooner.notified().now_or_never().is_some()
    };
    assert!(is_woken(1, 9), "it has nothing to look at");
    assert!(!is_woken(2, 12) && !is_woken(3, 9), "it looks soon enough");
    assert!(is_woken(4, 6));
    leases.hold(&[], now, |_| false);
    assert!(leases.sooner.notified().now_or_never().is_none(), "there is nothing new");
}

#[test]
fn a_lease_is_extended_by_one_call_at_a_time_and_not_when_it_is_lost() {
    let (leases, start) = (Leases::default(), Instant::now());
    let jobs = [1, 2, 3].map(|id| job(id, Duration::from_secs(9)));
    leases.hold(&jobs, start, |_| false);
    let [lost, alone, other] = jobs.map(|job| job.receipt());
    leases.lose(&lost);
    leases.extend_alone(&alone);
    let third = start + Duration::from_secs(3);
    assert_eq!(leases.due(third - Duration::from_millis(1)).beats, Vec::<Vec<Receipt>>::new());
    assert_eq!(leases.due(third).beats, [[alone], [other]]);
    assert_eq!(leases.due(third).beats, Vec::<Vec<Receipt>>::new(), "the store is being asked");
    leases.none_is_beating();
    assert_eq!(leases.due(third).beats, [[alone], [other]]);
}

#[test]
fn a_heartbeat_makes_no_lease_shorter() {
    let (leases, start) = (Leases::default(), Instant::now());
    let job = job(1, Duration::from_secs(9));
    leases.hold(std::slice::from_ref(&job), start, |_| false);
    leases.extended(&job.receipt(), start, Duration::from_secs(2));
    assert_eq!(leases.pass(start + Duration::from_secs(8)), []);
    assert_eq!(leases.pass(start + Duration::from_secs(9)), [job.receipt()]);
}

#[test]
fn a_lease_stays_what_it_was_when_it_is_extended() {
    let (leases, now) = (Leases::default(), Instant::now());
    let jobs = [1, 2].map(|id| job(id, Duration::from_secs(9)));
    leases.hold(&jobs, now, |job| job.id == JobId::new(2));
    let [ended, transactional] = jobs.map(|job| job.receipt());
    leases.ended(&ended);
    for receipt in [ended, transactional] {
        leases.extended(&receipt, now, Duration::from_secs(9));
    }
    assert_eq!((leases.is_running(&ended), leases.is_transactional(&ended)), (false, false));
    assert_eq!((leases.is_running(&transactional), leases.is_transactional(&transactional)), (true, true));
}

#[test]
fn what_is_due_within_a_quarter_of_its_time_goes_along() {
    let (leases, start) = (Leases::default(), Instant::now());
    // A third of each is 3, 9 and 10 s.
    let jobs = [(1, 9), (2, 27), (3, 30)].map(|(id, seconds)| job(id, Duration::from_secs(seconds)));
    leases.hold(&jobs, start, |_| false);
    let [due, soon, later] = jobs.map(|job| job.receipt());
    let third = start + Duration::from_secs(3);
    assert_eq!(leases.due(third).beats, [[due, soon]]);
    assert_eq!(leases.due(start + Duration::from_secs(10)).beats, [[later]]);
}

#[test]
fn after_a_heartbeat_that_failed_a_quarter_of_the_time_left_passes() {
    let (leases, start) = (Leases::default(), Instant::now());
    let job = job(1, Duration::from_secs(12));
    leases.hold(std::slice::from_ref(&job), start, |_| false);
    let [fourth, sixth] = [4, 6].map(|seconds| start + Duration::from_secs(seconds));
    assert_eq!(leases.due(fourth).beats, [[job.receipt()]]);
    leases.try_again(&job.receipt(), fourth);
    assert_eq!(leases.due(fourth).next, Some(sixth));
    assert_eq!(leases.due(sixth).beats, [[job.receipt()]]);
}

/// Asked again after a quarter of the time left, but a twelfth of the lease at least; and believed in until a third of it after that.
#[test]
fn a_lease_whose_job_is_locked_is_asked_for_again_and_believed_in_meanwhile() {
    let (leases, start) = (Leases::default(), Instant::now());
    let job = job(1, Duration::from_secs(12));
    leases.hold(std::slice::from_ref(&job), start, |_| false);
    let at = |millis: u64| start + Duration::from_millis(millis);
    leases.locked(&job.receipt(), at(4000), at(4000));
    assert_eq!(leases.due(at(4000)).next, Some(at(6000)), "2 of the 8 seconds that are left");
    leases.locked(&job.receipt(), at(11_000), at(11_000));
    assert_eq!(leases.due(at(11_000)).next, Some(at(12_000)), "a twelfth of the lease");
    assert_eq!(leases.pass(at(15_999)), []);
    assert_eq!(leases.pass(at(16_000)), [job.receipt()]);
}
