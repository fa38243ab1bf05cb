//! Which verdicts are sent when.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::{
    Capabilities, JobId, LeaseFor, MockStore, NewJob, SettleOutcome, Verdict, WorkerId, backend,
};

use super::*;
use crate::leases::Leases;
use crate::report::{Labels, Reporter};
use crate::settle::not_started;

fn settings(settle_batch: usize) -> Settings {
    Settings {
        worker: WorkerId::new("w").unwrap(),
        concurrency: 10,
        lease: LeaseFor::new(Duration::from_secs(60)).unwrap(),
        poll: Duration::from_secs(1),
        claim_batch: 200,
        settle_batch,
        settle_within: Duration::from_millis(2),
        grace: Duration::from_secs(30),
    }
}

/// Of a store in which other transactions have all rows locked.
fn settlements(settings: &Settings) -> Settlements {
    let mut store = MockStore::new();
    store.expect_capabilities().return_const(Capabilities::minimal());
    store.expect_settle().returning(|items| Ok(items.iter().map(|_| SettleOutcome::Pending).collect()));
    let labels = Labels { worker: settings.worker.clone(), queues: Vec::new(), kinds: HashSet::default() };
    let settler = Settler::new(Arc::new(store), Arc::new(Leases::default()), Reporter::new(labels));
    Settlements::new(settler, settings)
}

fn finished(id: i64) -> Finished {
    let new = NewJob::builder("q", "k").build().unwrap();
    let job = backend::accepted(JobId::new(id), &new, &Default::default(), Default::default());
    not_started(Arc::new(job), 0, Verdict::done())
}

/// A batch of this job after so many tries.
async fn tried(settler: &Settler, id: i64, tries: u32) -> Batch {
    let mut batch = settler.batch(vec![finished(id)]);
    for _ in 0..tries {
        batch = settler.round(batch).await.again.remove(0);
    }
    batch
}

fn ids(batch: &Batch) -> Vec<i64> {
    batch.jobs().iter().map(|job| job.receipt.job.get()).collect()
}

#[test]
fn no_more_is_claimed_from_a_thousand_jobs_or_four_batches_on() {
    for (batch, most) in [(10, 1000), (250, 1000), (300, 1200)] {
        let settings = settings(batch);
        let mut settlements = settlements(&settings);
        for (jobs, behind) in [(most - 1, false), (most, true)] {
            settlements.again_jobs = jobs;
            assert_eq!(settlements.is_behind(&settings), behind, "{jobs} jobs, batches of {batch}");
        }
    }
}

#[test]
fn what_was_held_is_sent_from_the_very_moment_on() {
    let mut settlements = settlements(&settings(10));
    let (now, moment) = (Instant::now(), Duration::from_millis(1));
    settlements.held_until = Some(now);
    assert_eq!(settlements.held_until(now - moment), Some(now));
    assert_eq!((settlements.held_until(now), settlements.held_until(now + moment)), (None, None));
}

#[tokio::test(start_paused = true)]
async fn what_has_failed_less_often_goes_first() {
    let mut settlements = settlements(&settings(1));
    let settler = Arc::clone(&settlements.settler);
    for (id, tries) in [(1, 3), (2, 1), (3, 2)] {
        settlements.again.push(tried(&settler, id, tries).await);
        // Each is due before the next one is tried.
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let order: Vec<_> =
        std::iter::from_fn(|| settlements.next_again(Instant::now())).map(|batch| ids(&batch)).collect();
    assert_eq!(order, [[2], [3], [1]]);
}

#[tokio::test(start_paused = true)]
async fn locked_jobs_go_along_if_they_are_due_soon() {
    let mut settlements = settlements(&settings(10));
    let settler = Arc::clone(&settlements.settler);
    // Two are due within 50 ms, the first in seven seconds at the earliest.
    for (id, tries) in [(1, 10), (2, 1), (3, 1)] {
        settlements.again.push(tried(&settler, id, tries).await);
    }
    tokio::time::advance(Duration::from_millis(50)).await;
    let next = settlements.next_again(Instant::now()).unwrap();
    let mut sent = ids(&next);
    sent.sort_unstable();
    assert_eq!(sent, [2, 3]);
    assert_eq!(settlements.again.iter().map(ids).collect::<Vec<_>>(), [[1]]);
}

#[test]
fn what_is_left_of_what_has_ended_is_still_due() {
    let settings = settings(2);
    let mut settlements = settlements(&settings);
    (1..=3).for_each(|id| settlements.add(finished(id), &settings));
    let due = settlements.due;
    assert!(due.is_some());
    assert_eq!(settlements.next_ended(Instant::now()).map(|batch| ids(&batch)), Some(vec![1, 2]));
    assert_eq!((settlements.unsent(), settlements.due), (1, due));
    assert_eq!(settlements.next_ended(due.unwrap()).map(|batch| ids(&batch)), Some(vec![3]));
    assert_eq!((settlements.unsent(), settlements.due), (0, None));
}

#[tokio::test(start_paused = true)]
async fn batches_that_are_sent_again_have_eight_places_and_stubborn_ones_half_of_them() {
    let mut settlements = settlements(&settings(10));
    let settler = Arc::clone(&settlements.settler);
    let (young, stubborn) = (tried(&settler, 1, 1).await, tried(&settler, 2, 10).await);
    for (under_way, places) in
        [(0, [true, true]), (3, [true, true]), (4, [true, false]), (7, [true, false]), (8, [false, false])]
    {
        settlements.under_way[1] = under_way;
        let ready = [&young, &stubborn].map(|batch| settlements.ready_at(batch));
        let expected =
            [(&young, places[0]), (&stubborn, places[1])].map(|(batch, has)| has.then_some(batch.due()));
        assert_eq!(ready, expected, "{under_way} under way");
    }
}

/// While nothing succeeds, verdicts that have failed alone are sent one by one, with pauses.
#[tokio::test(start_paused = true)]
async fn in_an_outage_one_verdict_at_a_time_is_sent_again() {
    let mut settlements = settlements(&settings(10));
    let settler = Arc::clone(&settlements.settler);
    let alone = tried(&settler, 1, 1).await;
    let until = alone.due() + Duration::from_secs(5);
    settlements.paused_until = Some(until);
    assert_eq!(settlements.ready_at(&alone), Some(until));
    settlements.paused_until = Some(alone.due() - Duration::from_millis(1));
    assert_eq!(settlements.ready_at(&alone), Some(alone.due()));
    settlements.under_way[1] = 1;
    assert_eq!(settlements.ready_at(&alone), None);
    // What was not sent again yet does not wait for others.
    let fresh = settler.batch(vec![finished(2)]);
    assert_eq!(settlements.ready_at(&fresh), Some(fresh.due()));
}

fn sent(jobs: usize, again: bool) -> Sent {
    let receipt = leasehold_core::Receipt { job: JobId::new(1), epoch: leasehold_core::Epoch::new(1) };
    Sent { jobs: vec![crate::settle::Unsettled { receipt, source: 0 }; jobs], again }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_fails_alone_holds_up_no_others_unless_the_store_fails_for_all() {
    let error = StoreError::unavailable("settle", "no");
    for (jobs, again, outage, paused) in
        [(1, true, false, false), (2, true, false, true), (1, false, false, true), (1, true, true, true)]
    {
        let mut settlements = settlements(&settings(10));
        if outage {
            settlements.outage.failed(&"before");
        }
        settlements.failed(&error, &sent(jobs, again));
        let now = Instant::now();
        assert_eq!(
            settlements.paused_until.is_some_and(|until| until > now),
            paused,
            "{jobs}, {again}, {outage}"
        );
        assert_eq!(settlements.outage.is_on(), paused);
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_batch_for_which_the_store_is_unavailable_holds_up_others() {
    let mut settlements = settlements(&settings(10));
    let (unavailable, backend) =
        (StoreError::unavailable("settle", "no"), StoreError::backend("settle", "no"));
    let now = Instant::now();
    let mut held = |error: &StoreError| {
        settlements.failed(error, &sent(2, false));
        settlements.held_until(now).is_some()
    };
    assert_eq!(
        [&unavailable, &unavailable, &unavailable, &backend, &unavailable].map(&mut held),
        [false, true, true, false, false]
    );
    settlements.failed(&unavailable, &sent(2, true));
    assert_eq!(settlements.held_until(now), None, "it was sent before");
}

#[test]
fn what_is_unsettled_is_counted_wherever_it_is() {
    let settings = settings(10);
    let mut settlements = settlements(&settings);
    (1..=2).for_each(|id| settlements.add(finished(id), &settings));
    (settlements.first_jobs, settlements.again_jobs) = (3, 5);
    assert_eq!(settlements.unsettled(), 10);
}

#[test]
fn jobs_are_counted_by_source() {
    assert_eq!(by_source([7, 3, 7, 7].into_iter()), [(7, 3), (3, 1)]);
}
