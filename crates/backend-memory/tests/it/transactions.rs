//! Transactions: all or nothing, and nothing before the commit.

use crate::support::{MINUTE, claim, enqueue, job, now, store};
use leasehold_core::{
    BatchSize, Enqueued, Fate, IdempotencyKey, Json, Queues, Record, Store, StoreError, TxStore, Verdict,
};
use leasehold_memory::{MemoryConnection, MemoryStore};

fn enqueue_in(store: &MemoryStore, tx: &mut MemoryConnection, key: &str) -> Enqueued {
    now(store.enqueue_in(tx, &[job("mail").unique_key(key).build().unwrap()])).unwrap()[0]
}

fn live(store: &MemoryStore) -> u64 {
    now(store.stats(&Queues::all())).unwrap().iter().map(|queue| queue.live()).sum()
}

#[test]
fn a_commit_shows_everything_at_once() {
    let (store, _) = store();
    let held = {
        enqueue(&store, job("work"));
        claim(&store, "work", 1).remove(0)
    };
    let mut tx = store.begin();
    assert!(tx.in_transaction());
    let new = enqueue_in(&store, &mut tx, "a");
    let _ = now(store.ack_in(&mut tx, &held.receipt(), Json::null())).unwrap();
    tx.put("paid", Json::new(&1).unwrap()).unwrap();
    assert!(now(store.get(new.id)).unwrap().is_none());
    assert!(matches!(now(store.get(held.id)).unwrap(), Some(Record::Live(_))));
    assert_eq!(store.value("paid"), None);

    tx.commit().unwrap();
    assert!(matches!(now(store.get(new.id)).unwrap(), Some(Record::Live(_))));
    assert!(matches!(now(store.get(held.id)).unwrap(), Some(Record::Finished(_))));
    assert_eq!(store.value("paid"), Some(Json::new(&1).unwrap()));
    assert_eq!(store.values().len(), 1);
    assert!(!tx.in_transaction());
}

#[test]
fn a_rollback_and_a_drop_leave_nothing() {
    let (store, _) = store();
    let key = IdempotencyKey::new("order-1").unwrap();
    for dropped in [false, true] {
        let mut tx = store.begin();
        assert!(!enqueue_in(&store, &mut tx, "a").deduplicated);
        assert!(now(store.once_in(&mut tx, &key)).unwrap());
        tx.put("x", Json::null()).unwrap();
        if dropped {
            drop(tx);
        } else {
            tx.rollback();
        }
        assert_eq!((live(&store), store.values().len()), (0, 0));
    }
    assert!(!enqueue(&store, job("mail").unique_key("a")).deduplicated);
}

#[test]
fn without_a_transaction_nothing_is_done() {
    let (store, _) = store();
    let mut connection = store.connection();
    let refused = now(store.enqueue_in(&mut connection, &[job("mail").build().unwrap()]));
    assert!(matches!(refused, Err(StoreError::NoTransaction { operation: "enqueue_in" })));
    assert!(matches!(connection.put("x", Json::null()), Err(StoreError::NoTransaction { .. })));
    assert!(matches!(connection.commit(), Err(StoreError::NoTransaction { .. })));
    connection.begin().unwrap();
    assert!(matches!(connection.begin(), Err(StoreError::Conflict { .. })));
    enqueue_in(&store, &mut connection, "a");
    connection.commit().unwrap();
    assert_eq!(live(&store), 1);
}

#[test]
fn a_connection_belongs_to_one_store() {
    let (store, _) = store();
    let mut tx = MemoryStore::new().begin();
    let refused = now(store.enqueue_in(&mut tx, &[job("mail").build().unwrap()]));
    assert!(matches!(refused, Err(StoreError::Conflict { .. })));
    let mut tx = store.begin();
    enqueue_in(&store.clone(), &mut tx, "a");
    tx.commit().unwrap();
}

#[test]
fn a_lease_lost_before_the_commit_undoes_it() {
    let (store, clock) = store();
    enqueue(&store, job("work"));
    let held = claim(&store, "work", 1).remove(0);
    let mut tx = store.begin();
    let _ = now(store.ack_in(&mut tx, &held.receipt(), Json::null())).unwrap();
    tx.put("paid", Json::null()).unwrap();
    clock.advance(MINUTE);
    now(store.reclaim(BatchSize::MAX)).unwrap();
    assert!(tx.commit().unwrap_err().is_lease_lost());
    assert_eq!(store.value("paid"), None);
    assert!(matches!(now(store.get(held.id)).unwrap(), Some(Record::Live(_))));
}

#[test]
fn a_stale_receipt_leaves_the_transaction_usable() {
    let (store, _) = store();
    enqueue(&store, job("work"));
    let held = claim(&store, "work", 1).remove(0);
    let mut tx = store.begin();
    let _ = now(store.ack_in(&mut tx, &held.receipt(), Json::null())).unwrap();
    assert!(now(store.ack_in(&mut tx, &held.receipt(), Json::null())).unwrap_err().is_lease_lost());
    tx.commit().unwrap();
    assert!(matches!(now(store.get(held.id)).unwrap(), Some(Record::Finished(_))));
}

#[test]
fn the_fate_that_was_told_comes_true() {
    let (store, clock) = store();
    enqueue(&store, job("work"));
    let held = claim(&store, "work", 1).remove(0);
    let mut tx = store.begin();
    let settled = now(store.settle_in(&mut tx, &held.receipt(), Verdict::retry("later"))).unwrap();
    clock.advance(MINUTE / 2);
    tx.commit().unwrap();
    let Fate::Retrying { available_at } = settled.fate() else { unreachable!("{settled:?}") };
    assert_eq!(now(store.get(held.id)).unwrap().unwrap().live().unwrap().available_at, available_at);
}

#[test]
fn a_unique_key_is_free_once_its_job_was_settled_in_the_transaction() {
    let (store, _) = store();
    let first = enqueue(&store, job("mail").unique_key("a"));
    let held = claim(&store, "mail", 1).remove(0);
    let mut tx = store.begin();
    assert_eq!(enqueue_in(&store, &mut tx, "a"), Enqueued { id: first.id, deduplicated: true });
    let _ = now(store.ack_in(&mut tx, &held.receipt(), Json::null())).unwrap();
    let second = enqueue_in(&store, &mut tx, "a");
    assert!(!second.deduplicated);
    assert_eq!(enqueue_in(&store, &mut tx, "a"), Enqueued { id: second.id, deduplicated: true });
    tx.commit().unwrap();
    assert_eq!(enqueue(&store, job("mail").unique_key("a")), Enqueued { id: second.id, deduplicated: true });
}

#[test]
fn a_unique_key_taken_meanwhile_is_a_conflict() {
    let (store, _) = store();
    let mut tx = store.begin();
    enqueue_in(&store, &mut tx, "a");
    enqueue_in(&store, &mut tx, "b");
    enqueue(&store, job("mail").unique_key("a"));
    assert!(matches!(tx.commit(), Err(StoreError::Conflict { .. })));
    assert_eq!(live(&store), 1);
}

#[test]
fn of_two_transactions_with_one_once_key_one_commits() {
    let (store, _) = store();
    let key = IdempotencyKey::new("order-1").unwrap();
    let (mut first, mut second) = (store.begin(), store.begin());
    assert!(now(store.once_in(&mut first, &key)).unwrap());
    assert!(!now(store.once_in(&mut first, &key)).unwrap());
    assert!(now(store.once_in(&mut second, &key)).unwrap());
    first.commit().unwrap();
    assert!(matches!(second.commit(), Err(StoreError::Conflict { .. })));
    second.begin().unwrap();
    assert!(!now(store.once_in(&mut second, &key)).unwrap());
    second.commit().unwrap();
}

#[test]
fn a_lock_that_came_later_keeps_a_settlement_from_its_commit() {
    let (store, _) = store();
    enqueue(&store, job("work"));
    let held = claim(&store, "work", 1).remove(0);
    let (mut first, mut second) = (store.begin(), store.begin());
    let _ = now(store.ack_in(&mut first, &held.receipt(), Json::null())).unwrap();
    now(store.lock_in(&mut second, held.receipt())).unwrap();
    let refused = first.commit().unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable { operation: "commit", .. }), "{refused}");
    let refused = now(store.lock_in(&mut store.begin(), held.receipt())).unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable { operation: "lock_in", .. }), "{refused}");

    let _ = now(store.ack_in(&mut second, &held.receipt(), Json::null())).unwrap();
    second.commit().unwrap();
    assert!(matches!(now(store.get(held.id)).unwrap(), Some(Record::Finished(_))));
}
