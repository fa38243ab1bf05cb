//! The operations that follow from the required ones, over a store that has nothing but lists.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, ConcurrencyLimit, Dequeue, Enqueued, Epoch, Explanation, Fate, FinalStatus,
    FinishedJob, HeartbeatOutcome, HistoryFilter, Intervention, Invalid, Job, JobFilter, JobId, JobState,
    Json, Lease, LeaseFor, NewJob, NextAvailable, Outcome, Page, Policies, Problem, Prune, QueueName,
    QueueOrder, QueuePattern, QueuePolicy, QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus, Reclaimed,
    Record, Redrive, Redriven, Result, RetryAfter, Schedule, SettleOutcome, Store, StoreError, Verdict,
    WorkerId, backend,
};

const NOW: i64 = 1000;

fn second(n: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + n, 0).unwrap()
}

/// Lists of jobs, in pages of two, and what was asked of them.
#[derive(Default)]
struct Lists {
    live: Vec<Job>,
    finished: Vec<FinishedJob>,
    policies: Mutex<Policies>,
    verdicts: Mutex<Vec<(Receipt, Verdict)>>,
    interventions: Mutex<Vec<(JobId, Intervention)>>,
    /// Whatever was asked of the lists of jobs.
    filters: Mutex<Vec<JobFilter>>,
    /// What becomes of each verdict.
    outcomes: Vec<SettleOutcome>,
    rate_limits: bool,
    /// How many pages were read.
    pages: AtomicUsize,
}

/// The first two, and where the next page begins.
fn page<T>(mut items: Vec<T>, id: impl Fn(&T) -> JobId) -> Page<T> {
    let more = items.len() > 2;
    items.truncate(2);
    let next = items.last().map(id).filter(|_| more);
    Page { items, next }
}

fn not_needed<T>() -> Result<T> {
    Err(StoreError::unsupported("what these tests do not need"))
}

#[async_trait]
impl Store for Lists {
    fn capabilities(&self) -> Capabilities {
        Capabilities { rate_limit: self.rate_limits, ..Capabilities::minimal() }
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(second(NOW))
    }

    async fn enqueue(&self, _: &[NewJob]) -> Result<Vec<Enqueued>> {
        not_needed()
    }

    async fn dequeue(&self, _: &Dequeue) -> Result<Vec<Job>> {
        not_needed()
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.verdicts.lock().unwrap().extend_from_slice(items);
        Ok(self.outcomes.clone())
    }

    async fn heartbeat(&self, _: &[Receipt], _: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        not_needed()
    }

    async fn reclaim(&self, _: BatchSize) -> Result<Vec<Reclaimed>> {
        not_needed()
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        self.interventions.lock().unwrap().push((id, intervention.clone()));
        Ok(())
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        let live = self.live.iter().find(|job| job.id == id).cloned().map(Record::Live);
        let finished = self.finished.iter().find(|job| job.id == id).cloned().map(Record::Finished);
        Ok(live.or(finished))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.count(filter.limit);
        self.filters.lock().unwrap().push(filter.clone());
        let jobs = self.live.iter().filter(|job| filter.matches(job, second(NOW))).cloned().collect();
        Ok(page(jobs, |job: &Job| job.id))
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.count(filter.limit);
        let jobs = self.finished.iter().filter(|job| filter.matches(job)).cloned().collect();
        Ok(page(jobs, |job: &FinishedJob| job.id))
    }

    async fn redrive(&self, _: &Redrive) -> Result<Redriven> {
        not_needed()
    }

    async fn prune(&self, _: &Prune) -> Result<u64> {
        not_needed()
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        self.policies.lock().unwrap().set(pattern.clone(), policy.clone());
        Ok(())
    }

    async fn policies(&self) -> Result<Policies> {
        Ok(self.policies.lock().unwrap().clone())
    }
}

impl Lists {
    /// Counts a page. There are few, and each is as large as can be.
    fn count(&self, limit: BatchSize) {
        assert_eq!(limit, BatchSize::MAX);
        assert!(self.pages.fetch_add(1, Ordering::Relaxed) < 100, "a list has no end");
    }

    fn of(live: impl IntoIterator<Item = Job>) -> Self {
        Self { live: live.into_iter().collect(), ..Self::default() }
    }

    fn with_policy(self, pattern: &str, policy: QueuePolicy) -> Self {
        self.policies.lock().unwrap().set(pattern.parse().unwrap(), policy);
        self
    }
}

/// A job that is available in so many seconds.
fn job(id: i64, queue: &str, wait: i64) -> Job {
    let new = NewJob::builder(queue, "k").max_attempts(3).build().unwrap();
    let job = backend::accepted(id.into(), &new, &Default::default(), second(0));
    Job { available_at: second(NOW + wait), ..job }
}

fn ready(id: i64, queue: &str) -> Job {
    job(id, queue, 0)
}

/// A job whose lease passes in so many seconds.
fn leased(id: i64, queue: &str, left: i64) -> Job {
    let lease = Some(Lease { until: second(NOW + left), worker: WorkerId::new("w").unwrap() });
    Job { lease, attempts: 1, epoch: Epoch::new(1), ..ready(id, queue) }
}

fn exhausted(id: i64, queue: &str) -> Job {
    Job { attempts: 3, ..ready(id, queue) }
}

fn finished(id: i64, queue: &str, status: FinalStatus) -> FinishedJob {
    backend::finished(ready(id, queue), Outcome::new(status, Json::error("e")), second(NOW - 1))
}

fn named(queue: &str) -> QueueName {
    QueueName::new(queue).unwrap()
}

fn fifo() -> QueuePolicy {
    QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() }
}

fn limit(limit: u32) -> QueuePolicy {
    let concurrency_limit = Some(ConcurrencyLimit::new(limit).unwrap());
    QueuePolicy { concurrency_limit, ..QueuePolicy::default() }
}

fn receipt(job: i64) -> Receipt {
    Receipt { job: job.into(), epoch: Epoch::new(1) }
}

#[tokio::test]
async fn thin_forms_send_one_verdict_and_tell_what_became_of_it() {
    let store = |outcomes: Vec<SettleOutcome>| Lists { outcomes, ..Lists::default() };
    let settled = store(vec![backend::settled_outcome(receipt(1), Fate::Completed)]);
    assert_eq!(settled.ack(&receipt(1), Json::null()).await.unwrap().fate(), Fate::Completed);
    let _ = settled.nack(&receipt(1), Json::error("e")).await.unwrap();
    let retry = Verdict::Retry { error: Json::error("e"), after: RetryAfter::Backoff };
    assert_eq!(*settled.verdicts.lock().unwrap(), [(receipt(1), Verdict::done()), (receipt(1), retry)]);

    let lost = store(vec![SettleOutcome::LeaseLost]).ack(&receipt(1), Json::null()).await.unwrap_err();
    assert!(lost.is_lease_lost() && !lost.is_retryable() && !lost.is_unknown(), "{lost}");
    assert_eq!(lost.to_string(), "ack: the lease 1@1 is lost");
    let pending = store(vec![SettleOutcome::Pending]).nack(&receipt(1), Json::null()).await.unwrap_err();
    assert!(pending.is_retryable() && !pending.is_lease_lost(), "{pending}");
    let none = store(Vec::new()).ack(&receipt(1), Json::null()).await.unwrap_err();
    assert!(matches!(none, StoreError::Corrupt { .. }), "{none}");
}

#[tokio::test]
async fn a_release_is_a_snooze_of_no_length() {
    let store = Lists { outcomes: vec![SettleOutcome::LeaseLost; 2], ..Lists::default() };
    let outcomes = store.release(&[receipt(1), receipt(2)]).await.unwrap();
    assert!(outcomes.len() == 2 && outcomes.iter().all(SettleOutcome::is_lost), "{outcomes:?}");
    let sent = [(receipt(1), Verdict::release()), (receipt(2), Verdict::release())];
    assert_eq!(*store.verdicts.lock().unwrap(), sent);
}

#[tokio::test]
async fn interventions_have_names() {
    let store = Lists::default();
    let (later, reason) = (Schedule::after(Duration::from_secs(3)).unwrap(), Json::error("why"));
    store.retry_later(1.into(), later).await.unwrap();
    store.discard(2.into(), reason.clone()).await.unwrap();
    store.promote(3.into()).await.unwrap();
    let expected = [
        (1.into(), Intervention::RetryLater(later)),
        (2.into(), Intervention::Discard { reason }),
        (3.into(), Intervention::Promote),
    ];
    assert_eq!(*store.interventions.lock().unwrap(), expected);
}

#[tokio::test]
async fn each_receipt_is_answered_and_too_many_are_refused() {
    let store = Lists { live: vec![leased(1, "q", 10), ready(2, "q")], ..Lists::default() };
    let statuses = store.receipts(&[receipt(2), receipt(1), receipt(3)]).await.unwrap();
    let held = ReceiptStatus::Held { until: second(NOW + 10) };
    assert_eq!(statuses, [ReceiptStatus::Gone, held, ReceiptStatus::Gone]);
    let many = vec![receipt(1); 10_001];
    for refusal in [store.receipts(&many).await.map(drop), store.release(&many).await.map(drop)] {
        let Err(StoreError::Invalid(invalid)) = refusal else { panic!("{refusal:?}") };
        assert_eq!(invalid, Invalid::new("receipts", Problem::TooMany { count: 10_001, limit: 10_000 }));
    }
}

#[tokio::test]
async fn stuck_jobs_are_those_whose_leases_have_passed_for_so_long() {
    let store = Lists::of([
        leased(1, "q", 5),
        leased(2, "q", -9),
        leased(3, "q", -10),
        ready(4, "q"),
        leased(5, "q", -11),
        leased(6, "q", -12),
    ]);
    let ids = async |limit: u32| {
        let stuck = store.stuck(Duration::from_secs(10), BatchSize::new(limit).unwrap()).await.unwrap();
        stuck.iter().map(|job| job.id.get()).collect::<Vec<_>>()
    };
    assert_eq!(ids(10).await, [3, 5, 6]);
    assert_eq!(ids(2).await, [3, 5]);
    let filters = store.filters.lock().unwrap();
    let expired = Some(vec![JobState::Expired]);
    assert!(filters.iter().all(|filter| filter.states == expired), "no others are read: {filters:?}");
}

#[tokio::test]
async fn usage_counts_the_leases_of_the_queue_passed_or_not() {
    let jobs =
        || [leased(1, "q", 5), leased(2, "q", -5), ready(3, "q"), leased(4, "q", 9), leased(5, "r", 5)];
    let usage = Lists::of(jobs()).usage(&named("q")).await.unwrap();
    assert_eq!(usage, QueueUsage { leased: 3, next_token_at: None });
    let with_rates = Lists { rate_limits: true, ..Lists::of(jobs()) };
    let refusal = with_rates.usage(&named("q")).await.unwrap_err();
    assert!(matches!(refusal, StoreError::Unsupported { .. }), "{refusal}");
}

#[tokio::test]
async fn a_job_is_explained_by_its_record() {
    let dead = finished(2, "q", FinalStatus::DeadLetter);
    let done = finished(3, "q", FinalStatus::Completed);
    let store = Lists { finished: vec![dead, done], ..Lists::of([leased(1, "q", 5)]) };
    let at = second(NOW - 1);
    let explained = async |id: i64| store.explain(id.into()).await.unwrap();
    let by = WorkerId::new("w").unwrap();
    assert_eq!(explained(1).await, Explanation::Leased { by, until: second(NOW + 5) });
    assert_eq!(explained(2).await, Explanation::DeadLetter { at, error: Json::error("e") });
    assert_eq!(explained(3).await, Explanation::Finished { status: FinalStatus::Completed, at });
    assert_eq!(explained(4).await, Explanation::Unknown);
}

#[tokio::test]
async fn a_ready_job_is_explained_by_the_others_of_its_queue() {
    let explained = async |store: &Lists, id: i64| store.explain(id.into()).await.unwrap();
    let behind = |id: i64| Explanation::WaitsBehind { job: id.into() };

    let urgent = Job { priority: 1, ..ready(3, "q") };
    let store = Lists::of([job(1, "q", 50), ready(2, "q"), urgent, job(4, "q", -1), ready(5, "r")]);
    let by_priority = [explained(&store, 2).await, explained(&store, 3).await, explained(&store, 4).await];
    assert_eq!(by_priority, [behind(3), Explanation::Next, behind(3)]);
    assert_eq!(explained(&store, 5).await, Explanation::Next, "it is alone in its queue");

    let store = Lists::of([job(4, "q", -1), ready(5, "q"), ready(6, "q")]);
    let by_time = [explained(&store, 4).await, explained(&store, 5).await, explained(&store, 6).await];
    assert_eq!(by_time, [Explanation::Next, behind(4), behind(4)]);

    let store = Lists::of([ready(1, "q"), ready(2, "q"), ready(3, "q")]).with_policy("q", fifo());
    assert_eq!(explained(&store, 1).await, Explanation::Next);
    assert_eq!(explained(&store, 3).await, behind(1));
    let store = Lists::of([ready(1, "q"), leased(2, "q", 5), ready(3, "q")]).with_policy("q", fifo());
    assert_eq!([explained(&store, 1).await, explained(&store, 3).await], [behind(2), behind(2)]);

    let jobs = || [leased(1, "q", 5), leased(2, "q", 5), ready(3, "q")];
    for (leases, expected) in [
        (1, Explanation::ConcurrencyLimit { limit: ConcurrencyLimit::new(1).unwrap() }),
        (2, Explanation::ConcurrencyLimit { limit: ConcurrencyLimit::new(2).unwrap() }),
        (3, Explanation::Next),
    ] {
        let store = Lists::of(jobs()).with_policy("q", limit(leases));
        assert_eq!(explained(&store, 3).await, expected, "a limit of {leases}");
    }
}

#[tokio::test]
async fn stats_count_each_queue_that_is_asked_for() {
    let dead = |id: i64, queue: &str| finished(id, queue, FinalStatus::DeadLetter);
    let store = Lists {
        finished: vec![
            dead(11, "a1"),
            dead(12, "a2"),
            dead(13, "a2"),
            finished(14, "a1", FinalStatus::Completed),
            dead(15, "b"),
        ],
        ..Lists::of([
            ready(1, "a1"),
            job(2, "a1", -5),
            job(3, "a1", -3),
            leased(4, "a1", 5),
            job(5, "a1", 9),
            ready(6, "b"),
        ])
    };
    let empty = |queue: &str| QueueStats::empty(named(queue), second(NOW));
    let a1 = QueueStats {
        states: [(JobState::Ready, 3), (JobState::Running, 1), (JobState::Scheduled, 1)].into(),
        oldest_ready_at: Some(second(NOW - 5)),
        dead_letters: 1,
        attempts: [(0, 4), (1, 1)].into(),
        ..empty("a1")
    };
    let a2 = QueueStats { dead_letters: 2, ..empty("a2") };
    let stats = store.stats(&"a*".parse().unwrap()).await.unwrap();
    assert_eq!(stats, [a1.clone(), a2.clone()]);
    assert_eq!((stats[0].count(JobState::Ready), stats[0].count(JobState::Expired)), (3, 0));
    assert_eq!((stats[0].live(), stats[0].oldest_ready_age()), (5, Some(Duration::from_secs(5))));
    assert_eq!((stats[1].live(), stats[1].oldest_ready_age()), (0, None));
    let by_name = store.stats(&Queues::named(["none", "a2"]).unwrap()).await.unwrap();
    assert_eq!(by_name, [a2, empty("none")]);
}

#[tokio::test]
async fn the_next_job_is_told_by_time_leases_and_policies() {
    let next = async |store: Lists| {
        let next = store.next_available_at(&Queues::named(["q", "r"]).unwrap()).await.unwrap();
        next.map(|NextAvailable { at, wait }| {
            assert_eq!(wait, leasehold_core::time::between(second(NOW), at));
            (at - second(NOW)).num_seconds()
        })
    };
    let paused = QueuePolicy { paused: Some(true), ..QueuePolicy::default() };
    assert_eq!(next(Lists::default()).await, None);
    assert_eq!(next(Lists::of([ready(1, "other")])).await, None, "nothing of other queues is told");
    assert_eq!(next(Lists::of([job(1, "q", 9), job(2, "r", 7), job(3, "q", 8)])).await, Some(7));
    assert_eq!(next(Lists::of([job(1, "q", 9), leased(2, "q", 4)])).await, Some(4), "a lease passes");
    assert_eq!(next(Lists::of([job(1, "q", 2), leased(2, "q", 4)])).await, Some(2));
    assert_eq!(next(Lists::of([leased(2, "q", -4)])).await, Some(-4), "a lease has passed");
    assert_eq!(next(Lists::of([exhausted(1, "q")])).await, Some(0), "it can be reclaimed");
    let store = Lists::of([ready(1, "q"), job(2, "r", 9)]).with_policy("q", paused);
    assert_eq!(next(store).await, Some(9), "a paused queue has nothing");

    // A queue at its limit has a place when a lease passes.
    let jobs = || [ready(1, "q"), leased(2, "q", 4), leased(3, "q", 6)];
    for (leases, expected) in [(1, 4), (2, 4), (3, 0)] {
        let store = Lists::of(jobs()).with_policy("q", limit(leases));
        assert_eq!(next(store).await, Some(expected), "a limit of {leases}");
    }
    // In a Fifo queue all wait for the first.
    let store = Lists::of([job(1, "q", 9), ready(2, "q")]).with_policy("q", fifo());
    assert_eq!(next(store).await, Some(9));
    let store = Lists::of([leased(1, "q", 5), ready(2, "q")]).with_policy("q", fifo());
    assert_eq!(next(store).await, Some(5));
    let store = Lists::of([exhausted(1, "q"), job(2, "q", -9)]).with_policy("q", fifo());
    assert_eq!(next(store).await, Some(0), "the first is to be reclaimed");
}

#[tokio::test]
async fn pause_and_resume_say_no_more_than_they_must() {
    let paused = |paused| QueuePolicy { paused, ..QueuePolicy::default() };
    let all_paused = || Lists::default().with_policy("*", paused(Some(true)));
    let (q, games) = ("q".parse().unwrap(), "game:*".parse().unwrap());

    let store = Lists::default().with_policy("q", fifo());
    store.pause(&q).await.unwrap();
    assert_eq!(store.policies().await.unwrap().set_for(&q), QueuePolicy { paused: Some(true), ..fifo() });
    assert!(store.policy(&named("q")).await.unwrap().paused);
    store.resume(&q).await.unwrap();
    assert_eq!(store.policies().await.unwrap().set_for(&q), fifo());

    // Where a wider policy pauses, the narrower must say that it does not.
    for pattern in [&q, &games] {
        let store = all_paused();
        store.resume(pattern).await.unwrap();
        assert_eq!(store.policies().await.unwrap().set_for(pattern), paused(Some(false)), "{pattern}");
        let store = all_paused().with_policy("other:*", paused(Some(true)));
        store.pause(pattern).await.unwrap();
        store.resume(&"*".parse().unwrap()).await.unwrap();
        store.resume(pattern).await.unwrap();
        assert_eq!(store.policies().await.unwrap().set_for(pattern), paused(None), "{pattern}");
    }
    // The longest of the wider ones decides.
    let store =
        all_paused().with_policy("ga*", paused(Some(false))).with_policy("game:1", paused(Some(true)));
    store.resume(&games).await.unwrap();
    assert_eq!(store.policies().await.unwrap().set_for(&games), paused(None));
}

#[tokio::test]
async fn a_store_that_says_nothing_is_silent_for_ever() {
    let store = Lists::default();
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let mut wakeups = store.wakeups(&Queues::all()).await.unwrap();
    assert!(wakeups.as_mut().poll_next(&mut context).is_pending());
    let mut events = store.subscribe(&Queues::all()).await.unwrap();
    assert!(events.as_mut().poll_next(&mut context).is_pending());
    assert!(store.dedicated().await.unwrap().is_none());
    let shown = format!("{:?}", &store as &dyn Store);
    assert!(shown.starts_with("Store { capabilities: Capabilities {"), "{shown}");
}
