//! Wake-ups and events.

use crate::support::{MINUTE, claim, enqueue, job, now, store};
use futures_util::{FutureExt, StreamExt};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, EventKind, Events, Json, Lagged, QueuePattern, QueuePolicy, Queues, Redrive,
    Schedule, Store, TxStore, Verdict, Wakeups,
};
use leasehold_memory::MemoryStore;

fn watch(store: &MemoryStore, queues: &str) -> Wakeups {
    now(store.wakeups(&queues.parse::<Queues>().unwrap())).unwrap()
}

fn woken(hints: &mut Wakeups) -> bool {
    let woken = hints.next().now_or_never().is_some();
    assert!(hints.next().now_or_never().is_none(), "one hint for any number of causes");
    woken
}

#[test]
fn every_way_to_become_available_wakes() {
    let (store, clock) = store();
    let (mut mail, mut other) = (watch(&store, "mail"), watch(&store, "x*"));
    let pattern: QueuePattern = "mail".parse().unwrap();
    assert!(!woken(&mut mail));

    let id = enqueue(&store, job("mail")).id;
    enqueue(&store, job("mail"));
    assert!(woken(&mut mail), "enqueue");
    let held = claim(&store, "mail", 1).remove(0);
    assert!(!woken(&mut mail), "a lease makes nothing available");
    now(store.release(&[held.receipt()])).unwrap();
    assert!(woken(&mut mail), "release");
    claim(&store, "mail", 1);
    clock.advance(MINUTE);
    now(store.reclaim(BatchSize::MAX)).unwrap();
    assert!(woken(&mut mail), "reclaim");
    now(store.retry_later(id, Schedule::after(MINUTE).unwrap())).unwrap();
    woken(&mut mail);
    now(store.promote(id)).unwrap();
    assert!(woken(&mut mail), "promote");
    now(store.pause(&pattern)).unwrap();
    woken(&mut mail);
    now(store.resume(&pattern)).unwrap();
    assert!(woken(&mut mail), "resume");
    let held = claim(&store, "mail", 1).remove(0);
    let _ = now(store.settle(&[(held.receipt(), Verdict::dead("no"))])).unwrap();
    assert!(!woken(&mut mail), "an end makes nothing available in a queue without limits");
    now(store.redrive(&Redrive::all(BatchSize::MAX))).unwrap();
    assert!(woken(&mut mail), "redrive");
    let mut tx = store.begin();
    now(store.enqueue_in(&mut tx, &[job("mail").build().unwrap()])).unwrap();
    assert!(!woken(&mut mail));
    tx.commit().unwrap();
    assert!(woken(&mut mail), "commit");
    assert!(!woken(&mut other));
}

#[test]
fn a_place_that_becomes_free_wakes() {
    let (store, _) = store();
    let policy =
        QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(1).unwrap()), ..QueuePolicy::default() };
    now(store.set_policy(&"mail".parse().unwrap(), &policy)).unwrap();
    enqueue(&store, job("mail"));
    enqueue(&store, job("mail"));
    let held = claim(&store, "mail", 2).remove(0);
    let mut hints = watch(&store, "m*");
    let _ = now(store.ack(&held.receipt(), Json::null())).unwrap();
    assert!(woken(&mut hints));
}

#[tokio::test]
async fn a_sleeping_subscriber_is_woken() {
    let store = MemoryStore::new();
    let mut hints = watch(&store, "mail");
    let sleeper = async { hints.next().await };
    let worker = async { enqueue(&store, job("mail")) };
    let (hint, _) = futures_util::future::join(sleeper, worker).await;
    assert_eq!(hint, Some(()));
}

fn kinds(events: &mut Events) -> Vec<EventKind> {
    std::iter::from_fn(|| events.next().now_or_never().flatten()).map(|event| event.unwrap().kind).collect()
}

#[test]
fn events_come_in_order() {
    use EventKind::{DeadLettered, Enqueued, LeaseLost, Leased, Reclaimed, Redriven, Retried, Settled};
    let (store, clock) = store();
    let mut events = now(store.subscribe(&"mail".parse().unwrap())).unwrap();
    enqueue(&store, job("mail"));
    enqueue(&store, job("other"));
    let held = claim(&store, "mail", 1).remove(0);
    let again = Verdict::retry_after("again", std::time::Duration::ZERO).unwrap();
    now(store.settle(&[(held.receipt(), again), (held.receipt(), Verdict::done())])).unwrap();
    assert_eq!(kinds(&mut events), [Enqueued, Leased, Retried, LeaseLost]);
    claim(&store, "mail", 1);
    clock.advance(MINUTE);
    now(store.reclaim(BatchSize::MAX)).unwrap();
    let held = claim(&store, "mail", 1).remove(0);
    now(store.settle(&[(held.receipt(), Verdict::dead("no"))])).unwrap();
    now(store.redrive(&Redrive::all(BatchSize::MAX))).unwrap();
    now(store.discard(held.id, Json::null())).unwrap();
    assert_eq!(kinds(&mut events), [Leased, Reclaimed, Leased, DeadLettered, Redriven, Settled]);
}

#[test]
fn a_slow_subscriber_is_told_how_many_it_missed() {
    let (store, _) = store();
    let mut events = now(store.subscribe(&Queues::all())).unwrap();
    let jobs: Vec<_> = (0..5000).map(|_| job("mail").build().unwrap()).collect();
    now(store.enqueue(&jobs)).unwrap();
    assert_eq!(events.next().now_or_never().flatten(), Some(Err(Lagged(5000 - 4096))));
    assert_eq!(kinds(&mut events).len(), 4096);
}
