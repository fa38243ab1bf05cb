//! The promise that the whole thing is for: however transactions, verdicts and reclaims interleave, a job's business
//! write is there exactly if the verdict of the same transaction counts (T7).

use std::time::Duration;

use crate::support::{claim, enqueue, job, now, store};
use leasehold_core::{
    BatchSize, FinalStatus, HistoryFilter, Json, Receipt, Schedule, Store, TxStore, Verdict,
};
use leasehold_memory::{ManualClock, MemoryConnection, MemoryStore};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

#[derive(Debug, Clone)]
enum Step {
    Claim,
    /// A handler: its write and its verdict on a transaction that stays open.
    Work(usize),
    Commit(usize),
    Drop(usize),
    /// Somebody else's verdict, or an administrator's word.
    Settle(usize),
    RetryLater(usize),
    Reclaim,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>();
    prop_oneof![
        Just(Step::Claim),
        which.prop_map(Step::Work),
        which.prop_map(Step::Work),
        which.prop_map(Step::Commit),
        which.prop_map(Step::Commit),
        which.prop_map(Step::Drop),
        which.prop_map(Step::Settle),
        which.prop_map(Step::RetryLater),
        Just(Step::Reclaim),
        (0..50u64).prop_map(Step::Wait),
    ]
}

struct World {
    store: MemoryStore,
    clock: ManualClock,
    receipts: Vec<Receipt>,
    open: Vec<MemoryConnection>,
}

impl World {
    fn new() -> Self {
        let (store, clock) = store();
        for _ in 0..4 {
            enqueue(&store, job("work").max_attempts(100));
        }
        Self { store, clock, receipts: Vec::new(), open: Vec::new() }
    }

    fn take(&mut self, step: &Step) {
        let receipt = |which: usize| self.receipts.get(which % self.receipts.len().max(1)).copied();
        match *step {
            Step::Claim => {
                self.receipts.extend(claim(&self.store, "work", 1).iter().map(|job| job.receipt()));
            }
            Step::Work(which) => self.open.extend(receipt(which).and_then(|receipt| self.work(receipt))),
            Step::Commit(which) if !self.open.is_empty() => {
                // It may fail; then nothing of it counts.
                drop(self.open.swap_remove(which % self.open.len()).commit());
            }
            Step::Drop(which) if !self.open.is_empty() => {
                drop(self.open.swap_remove(which % self.open.len()));
            }
            Step::Settle(which) => {
                if let Some(receipt) = receipt(which) {
                    now(self.store.settle(&[(receipt, Verdict::retry("other"))])).unwrap();
                }
            }
            Step::RetryLater(which) => {
                if let Some(receipt) = receipt(which) {
                    drop(now(self.store.retry_later(receipt.job, Schedule::Now)));
                }
            }
            Step::Reclaim => drop(now(self.store.reclaim(BatchSize::MAX)).unwrap()),
            Step::Wait(seconds) => self.clock.advance(Duration::from_secs(seconds)),
            Step::Commit(_) | Step::Drop(_) => {}
        }
    }

    fn work(&self, receipt: Receipt) -> Option<MemoryConnection> {
        let mut tx = self.store.begin();
        tx.put(receipt.to_string(), Json::null()).unwrap();
        now(self.store.ack_in(&mut tx, &receipt, Json::null())).ok().map(|_| tx)
    }

    /// The receipts whose writes are there are those with which jobs were completed.
    fn check(&self) {
        let completed =
            HistoryFilter { statuses: Some(vec![FinalStatus::Completed]), ..HistoryFilter::default() };
        let completed = now(self.store.history(&completed)).unwrap().items;
        let mut settled: Vec<_> =
            completed.iter().map(|job| Receipt { job: job.id, epoch: job.epoch }.to_string()).collect();
        settled.sort_unstable();
        assert_eq!(self.store.values().into_keys().collect::<Vec<_>>(), settled);
    }
}

proptest! {
    #[test]
    fn writes_are_there_exactly_if_their_verdict_counts(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
    }
}
