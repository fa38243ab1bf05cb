//! What the store keeps count of is what a recount gives: its own answers against those that `leasehold-core` derives
//! from the required methods, after random operations.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{SECOND, ids, job, now, store};
use leasehold_conformance::Plain;
use leasehold_core::{
    Archive, BatchSize, ConcurrencyLimit, Dequeue, Explanation, Intervention, Job, JobFilter, JobId,
    JobState, LeaseFor, Prune, QueueName, QueueOrder, QueuePolicy, Queues, RateLimit, Receipt, Redrive,
    Schedule, Store, Verdict,
};
use leasehold_memory::{ManualClock, MemoryStore};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

/// One of a few queues, patterns or jobs, so that operations meet.
const QUEUES: [&str; 4] = ["a", "b:1", "b:2", "c"];
const PATTERNS: [&str; 5] = ["a", "b:1", "b:*", "b*", "*"];

#[derive(Debug, Clone)]
enum Step {
    Enqueue { queue: usize, priority: i32, delay: u64, max_attempts: u32, key: Option<u8> },
    Claim { pattern: usize, limit: u32 },
    Settle { job: usize, verdict: Verdict },
    Heartbeat { job: usize, seconds: u64 },
    Reclaim(u32),
    Intervene { job: usize, intervention: Intervention },
    Redrive(u32),
    Prune(u64),
    Policy { pattern: usize, policy: QueuePolicy },
    Pause { pattern: usize, paused: bool },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let job = any::<usize>();
    prop_oneof![
        6 => (0..4usize, -2..3i32, prop_oneof![Just(0u64), 0..5000u64], 1..4u32, prop::option::of(0..3u8)).prop_map(
            |(queue, priority, delay, max_attempts, key)| Step::Enqueue { queue, priority, delay, max_attempts, key }
        ),
        6 => (0..5usize, 1..4u32).prop_map(|(pattern, limit)| Step::Claim { pattern, limit }),
        6 => (job, verdict()).prop_map(|(job, verdict)| Step::Settle { job, verdict }),
        1 => (job, 1..9u64).prop_map(|(job, seconds)| Step::Heartbeat { job, seconds }),
        2 => (1..4u32).prop_map(Step::Reclaim),
        2 => (job, intervention()).prop_map(|(job, intervention)| Step::Intervene { job, intervention }),
        1 => (1..4u32).prop_map(Step::Redrive),
        1 => (0..9u64).prop_map(Step::Prune),
        2 => (0..5usize, policy()).prop_map(|(pattern, policy)| Step::Policy { pattern, policy }),
        2 => (0..5usize, any::<bool>()).prop_map(|(pattern, paused)| Step::Pause { pattern, paused }),
        4 => (0..4000u64).prop_map(Step::Wait),
    ]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::done()),
        Just(Verdict::retry("no")),
        (0..3u64).prop_map(|seconds| Verdict::retry_after("no", Duration::from_secs(seconds)).unwrap()),
        (0..3u64).prop_map(|seconds| Verdict::snooze(Duration::from_secs(seconds)).unwrap()),
        Just(Verdict::dead("no")),
        Just(Verdict::discard("no")),
    ]
}

fn intervention() -> impl Strategy<Value = Intervention> {
    prop_oneof![
        (0..3u64).prop_map(|s| Intervention::RetryLater(Schedule::after(Duration::from_secs(s)).unwrap())),
        Just(Intervention::Discard { reason: leasehold_core::Json::null() }),
        Just(Intervention::Promote),
    ]
}

fn policy() -> impl Strategy<Value = QueuePolicy> {
    let order = prop::option::of(prop_oneof![Just(QueueOrder::Fifo), Just(QueueOrder::Priority)]);
    let limit = prop::option::of((1..3u32).prop_map(|limit| ConcurrencyLimit::new(limit).unwrap()));
    let rate = prop::option::of((1..4u32).prop_map(|burst| RateLimit::new(0.7, burst).unwrap()));
    let archive = prop::option::of(Just(Archive::DeadOnly));
    (prop::option::of(any::<bool>()), order, limit, rate, archive).prop_map(
        |(paused, order, concurrency_limit, rate, archive)| QueuePolicy {
            paused,
            order,
            concurrency_limit,
            rate,
            archive,
            ..QueuePolicy::default()
        },
    )
}

/// Two stores that are told the same: one answers itself, of the other everything is derived that can be.
struct Pair {
    own: MemoryStore,
    derived: Plain,
    clock: ManualClock,
    receipts: Vec<Receipt>,
}

impl Pair {
    fn new() -> Self {
        let (own, clock) = store();
        let derived = Plain::new(Arc::new(MemoryStore::builder().clock(clock.clone()).seed(7).build()));
        Self { own, derived, clock, receipts: Vec::new() }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Wait(millis) => self.clock.advance(Duration::from_millis(*millis)),
            Step::Pause { pattern, paused: true } => {
                self.both(|store| drop(now(store.pause(&PATTERNS[*pattern].parse().unwrap()))));
            }
            Step::Pause { pattern, paused: false } => {
                self.both(|store| drop(now(store.resume(&PATTERNS[*pattern].parse().unwrap()))));
            }
            Step::Policy { pattern, policy } => {
                self.both(|store| {
                    now(store.set_policy(&PATTERNS[*pattern].parse().unwrap(), policy)).unwrap();
                });
            }
            Step::Claim { pattern, limit } => self.claim(PATTERNS[*pattern], *limit),
            Step::Settle { job, verdict } => {
                let receipt = self.receipt(*job);
                self.both(|store| drop(now(store.settle(&[(receipt, verdict.clone())])).unwrap()));
            }
            Step::Heartbeat { job, seconds } => {
                let (receipt, extend) =
                    (self.receipt(*job), LeaseFor::new(SECOND * (*seconds as u32)).unwrap());
                self.both(|store| drop(now(store.heartbeat(&[receipt], extend)).unwrap()));
            }
            Step::Intervene { job, intervention } => {
                let id = self.receipt(*job).job;
                self.both(|store| drop(now(store.intervene(id, intervention))));
            }
            Step::Enqueue { queue, priority, delay, max_attempts, key } => {
                let new = job(QUEUES[*queue]).priority(*priority).max_attempts(*max_attempts);
                let new = new.delay(Duration::from_millis(*delay));
                let new = match key {
                    Some(key) => new.unique_key(key.to_string()),
                    None => new,
                };
                let new = [new.build().unwrap()];
                self.both(|store| drop(now(store.enqueue(&new)).unwrap()));
            }
            Step::Reclaim(limit) => self.both(|store| drop(now(store.reclaim(size(*limit))).unwrap())),
            Step::Redrive(limit) => {
                self.both(|store| drop(now(store.redrive(&Redrive::all(size(*limit)))).unwrap()));
            }
            Step::Prune(seconds) => {
                let prune = Prune::older_than(Duration::from_secs(*seconds), size(2)).unwrap();
                self.both(|store| assert!(now(store.prune(&prune)).unwrap() <= 2));
            }
        }
    }

    /// Claims, and looks whether what was leased is what `explain` had said to be next.
    fn claim(&mut self, queues: &str, limit: u32) {
        let queues: Queues = queues.parse().unwrap();
        let next: Vec<JobId> =
            self.live(&queues).iter().map(|job| job.id).filter(|id| self.is_next(*id)).collect();
        let request = Dequeue::new(queues, "worker").unwrap().limit(limit).unwrap();
        let request = request.lease_for(SECOND * 2).unwrap();
        let leased = now(self.own.dequeue(&request)).unwrap();
        assert_eq!(leased, now(self.derived.dequeue(&request)).unwrap());
        assert!(next.len() >= leased.len().min(1) && leased.len() >= next.len().min(limit as usize));
        assert!(
            leased.first().is_none_or(|first| next.contains(&first.id)),
            "{:?} of {next:?}",
            ids(&leased)
        );
        self.receipts.extend(leased.iter().map(Job::receipt));
    }

    fn is_next(&self, id: JobId) -> bool {
        now(self.own.explain(id)).unwrap() == Explanation::Next
    }

    fn live(&self, queues: &Queues) -> Vec<Job> {
        let filter = JobFilter { queues: queues.clone(), limit: BatchSize::MAX, ..JobFilter::default() };
        now(self.own.jobs(&filter)).unwrap().items
    }

    fn receipt(&self, number: usize) -> Receipt {
        let nobody = Receipt { job: JobId::new(1), epoch: leasehold_core::Epoch::ZERO };
        // Mostly a recent one, which may be good.
        let recent = self.receipts.len().saturating_sub(number % 8 + 1);
        self.receipts.get(recent).copied().unwrap_or(nobody)
    }

    fn both(&self, operation: impl Fn(&dyn Store)) {
        operation(&self.own);
        operation(&self.derived);
    }

    fn compare(&self) {
        let (own, derived) = (&self.own, &self.derived);
        assert_eq!(now(own.policies()).unwrap(), now(derived.policies()).unwrap());
        for queues in PATTERNS.into_iter().chain(QUEUES) {
            let queues: Queues = queues.parse().unwrap();
            assert_eq!(now(own.stats(&queues)).unwrap(), now(derived.stats(&queues)).unwrap());
            assert_eq!(
                now(own.next_available_at(&queues)).unwrap(),
                now(derived.next_available_at(&queues)).unwrap()
            );
        }
        for queue in QUEUES {
            let queue = QueueName::new(queue).unwrap();
            assert_eq!(now(own.policy(&queue)).unwrap(), now(derived.policy(&queue)).unwrap());
            let leased = self.live(&(&queue).into()).iter().filter(|job| job.lease.is_some()).count();
            assert_eq!(now(own.usage(&queue)).unwrap().leased, leased as u64);
        }
        for id in (1..60).map(JobId::new) {
            assert_eq!(now(own.explain(id)).unwrap(), now(derived.explain(id)).unwrap());
        }
        assert_eq!(
            now(own.receipts(&self.receipts)).unwrap(),
            now(derived.receipts(&self.receipts)).unwrap()
        );
        for age in [Duration::ZERO, SECOND] {
            assert_eq!(now(own.stuck(age, size(2))).unwrap(), now(derived.stuck(age, size(2))).unwrap());
        }
        self.compare_with_the_derived_state();
    }

    /// `JobFilter::states` goes by the derived state; so must the index by which claims are made.
    fn compare_with_the_derived_state(&self) {
        let now_ = now(self.own.now()).unwrap();
        let ready = self.live(&Queues::all()).iter().filter(|job| job.state(now_) == JobState::Ready).count();
        let stats = now(self.own.stats(&Queues::all())).unwrap();
        assert_eq!(stats.iter().map(|queue| queue.count(JobState::Ready)).sum::<u64>(), ready as u64);
    }
}

fn size(size: u32) -> BatchSize {
    BatchSize::new(size).unwrap()
}

proptest! {
    #[test]
    fn own_answers_are_the_derived_ones(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
            pair.compare();
        }
    }
}
