//! The order of leases over several queues.

use crate::support::{MINUTE, SECOND, claim, enqueue, job, now, queues_of, store};
use leasehold_core::{Dequeue, QueueOrder, QueuePattern, QueuePolicy, Queues, RateLimit, Store};
use leasehold_memory::MemoryStore;

fn set(store: &MemoryStore, pattern: &str, policy: QueuePolicy) {
    let pattern: QueuePattern = pattern.parse().unwrap();
    now(store.set_policy(&pattern, &policy)).unwrap();
}

fn fill(store: &MemoryStore, queues: &[&str], each: usize) {
    for _ in 0..each {
        for queue in queues {
            enqueue(store, job(queue));
        }
    }
}

#[test]
fn queues_of_a_prefix_are_served_round_by_round() {
    let (store, _) = store();
    fill(&store, &["g:a", "g:c", "other"], 3);
    fill(&store, &["g:b"], 1);
    let jobs = claim(&store, "g:*", 10);
    assert_eq!(queues_of(&jobs), ["g:a", "g:b", "g:c", "g:a", "g:c", "g:a", "g:c"]);
}

#[test]
fn a_call_goes_on_where_the_last_one_stopped() {
    let (store, _) = store();
    fill(&store, &["g:a", "g:b", "g:c"], 3);
    let served: Vec<_> = (0..4).flat_map(|_| claim(&store, "g:*", 2)).collect();
    assert_eq!(queues_of(&served), ["g:a", "g:b", "g:c", "g:a", "g:b", "g:c", "g:a", "g:b"]);
}

#[test]
fn prefixes_do_not_disturb_each_other() {
    let (store, _) = store();
    fill(&store, &["a:1", "a:2", "b:1", "b:2"], 2);
    let served: Vec<_> =
        ["a:*", "b:*", "a:*", "b:*"].iter().flat_map(|queues| claim(&store, queues, 1)).collect();
    assert_eq!(queues_of(&served), ["a:1", "b:1", "a:2", "b:2"]);
}

#[test]
fn queues_that_are_held_back_take_no_turn() {
    let (store, clock) = store();
    set(&store, "g:b", QueuePolicy { paused: Some(true), ..QueuePolicy::default() });
    set(&store, "g:c", QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() });
    set(&store, "g:d", QueuePolicy { rate: Some(RateLimit::new(1.0, 2).unwrap()), ..QueuePolicy::default() });
    enqueue(&store, job("g:e").delay(MINUTE));
    fill(&store, &["g:a", "g:b", "g:c", "g:d"], 4);
    assert_eq!(queues_of(&claim(&store, "g:*", 20)), ["g:a", "g:c", "g:d", "g:a", "g:d", "g:a", "g:a"]);
    clock.advance(SECOND);
    assert_eq!(queues_of(&claim(&store, "g:*", 20)), ["g:d"]);
    clock.advance(MINUTE);
    assert_eq!(queues_of(&claim(&store, "g:*", 20)), ["g:e", "g:d"]);
}

#[test]
fn an_idle_queue_keeps_its_empty_bucket() {
    let (store, clock) = store();
    set(&store, "q", QueuePolicy { rate: Some(RateLimit::new(0.1, 1).unwrap()), ..QueuePolicy::default() });
    enqueue(&store, job("q"));
    let held = claim(&store, "q", 1).remove(0);
    let _ = now(store.ack(&held.receipt(), leasehold_core::Json::null())).unwrap();
    enqueue(&store, job("q"));
    assert!(claim(&store, "q", 1).is_empty());
    let next = now(store.next_available_at(&"q".parse().unwrap())).unwrap().unwrap();
    assert_eq!((next.at, next.wait), (now(store.now()).unwrap() + SECOND * 10, SECOND * 10));
    clock.advance(SECOND * 10);
    assert_eq!(claim(&store, "q", 1).len(), 1);
}

#[test]
fn a_changed_rate_limit_starts_with_a_full_bucket() {
    let (store, _) = store();
    let limited =
        |burst| QueuePolicy { rate: Some(RateLimit::new(0.1, burst).unwrap()), ..QueuePolicy::default() };
    fill(&store, &["q"], 10);
    set(&store, "q", limited(2));
    assert_eq!(claim(&store, "q", 10).len(), 2);
    set(&store, "q", QueuePolicy { max_attempts: Some(leasehold_core::MaxAttempts::DEFAULT), ..limited(2) });
    assert_eq!(claim(&store, "q", 10).len(), 0, "the rate limit is the same");
    set(&store, "q", limited(3));
    assert_eq!(claim(&store, "q", 10).len(), 3);
}

#[test]
fn a_burst_is_whole_whatever_the_rate() {
    let (store, _) = store();
    let rate = RateLimit::new(7000.0, 1000).unwrap();
    set(&store, "q", QueuePolicy { rate: Some(rate), ..QueuePolicy::default() });
    fill(&store, &["q"], 1001);
    assert_eq!(claim(&store, "q", 2000).len(), 1000);
}

#[test]
fn named_queues_have_one_order() {
    let (store, clock) = store();
    for (queue, priority) in [("a", 0), ("b", 5), ("c", 0), ("a", 5), ("c", 9)] {
        enqueue(&store, job(queue).priority(priority));
        clock.advance(SECOND);
    }
    enqueue(&store, job("b").priority(99).delay(MINUTE));
    let queues = Queues::named(["c", "a", "b", "nothing"]).unwrap();
    let jobs = now(store.dequeue(&Dequeue::new(queues, "worker").unwrap().limit(9).unwrap())).unwrap();
    assert_eq!(queues_of(&jobs), ["c", "b", "a", "a", "c"]);
}
