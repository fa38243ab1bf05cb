//! The trait that a backend implements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::bounded::{BatchSize, LeaseFor};
use crate::capabilities::Capabilities;
use crate::derived;
use crate::error::Result;
use crate::event::{Events, Silence, Wakeups};
use crate::inspect::{Explanation, NextAvailable, QueueStats, QueueUsage};
use crate::job::{FinishedJob, Job, JobId, Receipt, Record};
use crate::json::Json;
use crate::name::QueueName;
use crate::new_job::{Enqueued, NewJob};
use crate::policy::{EffectivePolicy, Policies, QueuePolicy};
use crate::queues::{QueuePattern, Queues};
use crate::request::{
    Dequeue, HistoryFilter, Intervention, JobFilter, Page, Prune, Reclaimed, Redrive, Redriven,
};
use crate::time::Schedule;
use crate::verdict::{HeartbeatOutcome, ReceiptStatus, SettleOutcome, Settled, Verdict};

/// A place where jobs live.
///
/// # For those who write a backend
///
/// Fifteen methods are required; they come first. The rest is derived from them; override what your database can do
/// faster, and the suite checks that it gives the same answer.
///
/// * Every method takes values that are already checked, except for the length of batches and the size of documents:
///   [`backend`](crate::backend) has one function for each, to be called first.
/// * *Time* is the store's own clock ([C4](crate::contract::C4)): the database server's if there is one, the machine's for
///   an embedded store. Within one call it is read once.
/// * A method never blocks its thread to wait for a lock: workers share the runtime, and the task that holds the lock may be the
///   next one to run on that thread. A store that keeps a local file does so on threads of its own.
/// * What a method does to one job becomes visible at once or not at all ([C1](crate::contract::C1)), also if its future
///   is dropped halfway ([C2](crate::contract::C2)). Most backends do a whole call in one step.
/// * A *good receipt* names a live job that has a lease and is in the receipt's epoch, whether or not the lease has
///   passed. Any other receipt is *stale*. That is one condition: `id = ? AND lease_epoch = ? AND lease_until IS NOT
///   NULL`.
/// * To *finish* a job is to remove it from the queue and write one [`FinishedJob`] row in the same atomic step, or
///   no row if [`Archive::keeps`](crate::Archive::keeps) of its queue's policy says so
///   ([S12](crate::contract::S12), [P7](crate::contract::P7)). [`backend::finished`](crate::backend::finished)
///   makes the row.
/// * Every change of a live job sets its `updated_at` to now.
///
/// # Errors
///
/// Every method can fail with [`Unavailable`](crate::StoreError::Unavailable) (nothing was done; call again),
/// [`Unknown`](crate::StoreError::Unknown) (the answer was lost), [`Corrupt`](crate::StoreError::Corrupt) or
/// [`Backend`](crate::StoreError::Backend) (anything else, such as a full disk or a missing table). The docs of each name only what is particular to it.
///
/// # Cancel safety
///
/// Dropping the future of any method leaves each job as it was or as it should become, and the store fit for use
/// ([C2](crate::contract::C2)). Whether the call took effect is then not known: jobs leased by a dropped
/// [`dequeue`](Self::dequeue) come back when their lease has passed and was reclaimed.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this backend can do. The same on every call.
    fn capabilities(&self) -> Capabilities;

    /// The store's time, in whole microseconds.
    ///
    /// # Contract
    /// * **[C4](crate::contract::C4)** Every time that the store writes or compares is by this clock. It does not go
    ///   backwards, unless the clock of the machine that it is on does.
    async fn now(&self) -> Result<DateTime<Utc>>;

    /// Puts jobs into their queues. A queue exists by being named.
    ///
    /// # Contract
    /// * **[E1](crate::contract::E1)** The batch is accepted whole or not at all; over several queues, if
    ///   [`Capabilities::atomic_batches`] says so. Invalid input refuses the whole batch in any case.
    /// * **[E2](crate::contract::E2)** One answer per job, in the order given.
    /// * **[E3](crate::contract::E3)** A *live* job (in the queue, in whatever state) with the same queue and unique
    ///   key wins: its id is answered with `deduplicated: true`, and nothing of it changes.
    /// * **[E4](crate::contract::E4)** The same inside one batch: the first is accepted, the others get its id.
    /// * **[E5](crate::contract::E5)** The same under any race. The winner that is named has been committed.
    /// * **[E6](crate::contract::E6)** The key is free again when the job is finished.
    /// * **[E7](crate::contract::E7)** Keys and names are compared byte for byte; jobs without a key are never
    ///   deduplicated.
    /// * **[E8](crate::contract::E8)** `available_at` is [`Schedule::available_at`] of now.
    /// * **[E9](crate::contract::E9)** What was given comes back equal, on every way out of the store.
    /// * **[E10](crate::contract::E10)** Ids are positive, never given twice, and rise in the order of the jobs that
    ///   one caller enqueues. Gaps are allowed.
    /// * **[E11](crate::contract::E11)** `attempts` 0, no lease, epoch 0, no `first_leased_at`, no `last_error`,
    ///   `created_at` and `updated_at` now.
    /// * **[E12](crate::contract::E12)** Without `max_attempts`: the queue's policy at this moment, or else 5. It is
    ///   written into the job and does not change with the policy.
    /// * **[E13](crate::contract::E13)** Callers that wait for a key hold up no job without a key and no other queue,
    ///   if the backend promises concurrent writers.
    /// * **[I2](crate::contract::I2)** No jobs, no answers, no error.
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid) **[I1](crate::contract::I1)**: `jobs` for more than 10 000, `payload` for
    ///   one beyond [`Capabilities::payload_limit`]. See [`backend::check_enqueue`](crate::backend::check_enqueue).
    ///
    /// # Examples
    /// ```
    /// # use leasehold_core::{NewJob, Result, Store, StoreError};
    /// # async fn example(store: &dyn Store) -> Result<()> {
    /// let job = NewJob::builder("mail", "welcome").payload(&"ada").unique_key("ada").build()?;
    /// let answers = store.enqueue(&[job]).await?;
    /// if answers[0].deduplicated {
    ///     // Job answers[0].id is there already.
    /// }
    /// # Ok(()) }
    /// ```
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    /// Leases up to `request.limit` ready jobs to the caller.
    ///
    /// An empty vector means that nothing could be leased at this instant, not that the queue is empty.
    ///
    /// # Contract
    /// * **[D1](crate::contract::D1)** Only jobs that are [`Ready`](crate::JobState::Ready) are leased: no lease at
    ///   all (one that has passed must be reclaimed first), attempts left, `available_at <= now`.
    /// * **[D2](crate::contract::D2)** No two live leases name the same job, however many callers race.
    /// * **[D3](crate::contract::D3)** `attempts + 1` as the lease is granted, so a worker that dies at once has
    ///   still spent it.
    /// * **[D4](crate::contract::D4)** A larger `epoch`, that no lease of this job had before.
    /// * **[D5](crate::contract::D5)** At most `limit` jobs, none twice.
    /// * **[D6](crate::contract::D6)** Over [`Queues::Named`]: `priority DESC, available_at, id` over the jobs of all
    ///   the queues together.
    /// * **[D11](crate::contract::D11)** Over [`Queues::Matching`]: that order inside each queue, and turns between
    ///   queues. Inside one call no queue gets a second job while another matching queue has a leasable job and got
    ///   none, and so on round by round. Each prefix has turns of its own, and leases from named queues are no turns. The
    ///   calls of one handle go on where its last call stopped (or where the last
    ///   call of any handle did), so that a queue which was served waits until every other queue with a leasable job was
    ///   served.
    /// * **[D7](crate::contract::D7)** The lease ends at now + `lease_for`, or the queue's `max_lease` if that is
    ///   shorter (**[P6](crate::contract::P6)**), and names `worker`.
    /// * **[D8](crate::contract::D8)** `first_leased_at` is set to now if it is not set.
    /// * **[D9](crate::contract::D9)** Only the queues asked for, names compared byte for byte.
    /// * **[D10](crate::contract::D10)** Nothing else changes, in these jobs or in others.
    /// * **[D12](crate::contract::D12)** The answer shows the jobs as now stored, in the order in which they were
    ///   leased.
    /// * **[D13](crate::contract::D13)** If nobody else is calling, fewer than `limit` jobs means that no more could be
    ///   leased.
    /// * **[D14](crate::contract::D14)** Also while others are calling: a call that comes short has left behind only
    ///   jobs that were not Ready or not committed when it began, and jobs that other transactions had locked.
    /// * **[P1](crate::contract::P1)** Nothing from a paused queue.
    /// * **[P2](crate::contract::P2)** Never more leases in a queue than its concurrency limit, those that have passed
    ///   and were not reclaimed included.
    /// * **[P3](crate::contract::P3)** Each lease takes a token of its queue's [`RateLimit`](crate::RateLimit); none
    ///   without one. Tokens are not given back.
    /// * **[P4](crate::contract::P4)** From a Fifo queue at most one job, only if the queue has no lease at all
    ///   (passed ones included), and only the live job with the smallest id. Among other queues it takes its place
    ///   by its own priority and `available_at`.
    /// * **[P5](crate::contract::P5)** If that job is not Ready, nothing from this queue, and other queues as usual.
    /// * **[P13](crate::contract::P13)** What one queue's policy holds back takes no place in the answer from others.
    ///
    /// Unspecified: which jobs are leased when callers race, and whether a batch is then filled to `limit`.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_core::{Dequeue, Result, Store, Verdict};
    /// # async fn example(store: &dyn Store) -> Result<()> {
    /// let request = Dequeue::new("mail", "worker-1")?.limit(10)?;
    /// for job in store.dequeue(&request).await? {
    ///     let name: String = job.payload.to().unwrap_or_default();
    ///     store.settle(&[(job.receipt(), Verdict::done_with(&name)?)]).await?;
    /// }
    /// # Ok(()) }
    /// ```
    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>>;

    /// Applies verdicts to leased jobs.
    ///
    /// # Contract
    /// * **[S1](crate::contract::S1)** One outcome per item, in the order given; a stale one does not affect the rest.
    /// * **[S2](crate::contract::S2)** Stale receipt: [`LeaseLost`](SettleOutcome::LeaseLost), and nothing at all was
    ///   changed, `updated_at` included.
    /// * **[S13](crate::contract::S13)** The receipt alone decides. Who sends it does not matter.
    /// * **[S10](crate::contract::S10)** A receipt whose lease has passed is good until the job is reclaimed or taken.
    /// * **[S11](crate::contract::S11)** An applied verdict makes the receipt stale, for a second item of the same
    ///   batch too.
    /// * **[S3](crate::contract::S3)** `Done`: finished as completed with the result.
    /// * **[S4](crate::contract::S4)** `Retry` with a delay, attempts left (`attempts < max_attempts`): lease removed,
    ///   `available_at` now + delay, `last_error` the error; attempts and epoch unchanged.
    /// * **[S5](crate::contract::S5)** `Retry` with [`RetryAfter::Backoff`](crate::RetryAfter::Backoff): the delay is
    ///   [`Backoff::delay`](crate::Backoff::delay) of the queue's policy for `attempts`, with fresh randomness for
    ///   each item.
    /// * **[S6](crate::contract::S6)** `Retry`, no attempts left: finished as dead letter with the error, which is
    ///   its `last_error` too.
    /// * **[S7](crate::contract::S7)** `Snooze`: lease removed, `attempts - 1`, `available_at` now + delay;
    ///   `last_error` and epoch unchanged.
    /// * **[S8](crate::contract::S8)** `Dead`: finished as dead letter with the error, which is its `last_error` too.
    /// * **[S9](crate::contract::S9)** `Discard`: finished as discarded with the reason; `last_error` unchanged.
    /// * **[S12](crate::contract::S12)** One history row for each finish: `processed_by` the lease's worker,
    ///   `started_at` the job's `first_leased_at`, `finished_at` now, the rest as the job had it.
    /// * **[S14](crate::contract::S14)** Good receipt, but another transaction has the job's row locked:
    ///   [`Pending`](SettleOutcome::Pending), and nothing at all was changed. The call does not wait for the lock, and the
    ///   other items count. Give the same verdict again later: it is then applied, or the receipt is stale. The other
    ///   transaction may be a user's, or another call of the store, such as a heartbeat. A store in which
    ///   [`settle_in`](crate::TxStore::settle_in) locks no row applies the verdict instead, and the other's commit fails
    ///   ([T7](crate::contract::T7)).
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid) **[I1](crate::contract::I1)**: `items` for more than 10 000; `result`,
    ///   `error` or `reason` for a document beyond [`Capabilities::payload_limit`]. See
    ///   [`backend::check_settle`](crate::backend::check_settle).
    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>>;

    /// Extends leases that are still live.
    ///
    /// # Contract
    /// * **[H1](crate::contract::H1)** The lease ends at now + `extend`, or the queue's `max_lease` from now if that is
    ///   shorter (**[P6](crate::contract::P6)**); the answer tells when.
    /// * **[H2](crate::contract::H2)** Unless it ends later already: then it stays, and the answer tells that.
    /// * **[H3](crate::contract::H3)** A lease that has passed (`lease_until <= now`) is [`Lost`](HeartbeatOutcome::Lost),
    ///   unless an open transaction has the job locked: no reclaim can take it then, so it is
    ///   [`Pending`](HeartbeatOutcome::Pending) ([T10](crate::contract::T10)).
    /// * **[H4](crate::contract::H4)** A stale receipt is `Lost`. In all these cases nothing at all was changed.
    /// * **[H5](crate::contract::H5)** One answer per receipt, in the order given; one given twice is answered twice.
    /// * **[H6](crate::contract::H6)** Only `lease_until` and `updated_at` change.
    /// * **[H7](crate::contract::H7)** A job that an open transaction is about to settle holds up no other receipt of the
    ///   call, if [`Capabilities::concurrent_writers`] says so: where the transaction has locked the job, skip it and
    ///   answer [`Pending`](HeartbeatOutcome::Pending).
    ///
    /// Unspecified: whether a heartbeat that leaves the lease as it is sets `updated_at`.
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid): `receipts` for more than 10 000.
    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>>;

    /// Takes back what dead workers have left: leases that have passed, and jobs whose attempts are spent.
    ///
    /// Any caller may do it at any time; workers do it now and then.
    ///
    /// # Contract
    /// * **[R1](crate::contract::R1)** Only [`Expired`](crate::JobState::Expired) and
    ///   [`Exhausted`](crate::JobState::Exhausted) jobs are touched.
    /// * **[R2](crate::contract::R2)** Expired, `attempts < max_attempts`: lease removed, `available_at` now. Here and below
    ///   [`backend::apply_reclaim`](crate::backend::apply_reclaim) says what becomes of the job.
    /// * **[P12](crate::contract::P12)** The same with the queue's [`OnExpiry::Backoff`](crate::OnExpiry::Backoff):
    ///   `available_at` now + the queue's backoff for `attempts`.
    /// * **[R3](crate::contract::R3)** Expired, no attempts left: finished as dead letter with the error
    ///   [`backend::lease_expired`](crate::backend::lease_expired), `processed_by` the lease's worker.
    /// * **[R4](crate::contract::R4)** Exhausted: finished as dead letter with its `last_error`, or
    ///   [`backend::attempts_exhausted`](crate::backend::attempts_exhausted) if it has none.
    /// * **[R5](crate::contract::R5)** At most `limit` jobs a call, and as many if nobody else is calling; jobs that cannot
    ///   be taken hide no others, so that repeated calls get through everything.
    /// * **[R6](crate::contract::R6)** Each once, however many callers race with each other, with verdicts and with
    ///   heartbeats.
    /// * **[R7](crate::contract::R7)** The old receipt is stale from then on.
    /// * **[R8](crate::contract::R8)** Attempts do not change; `epoch + 1` if there was a lease; `last_error` of an Expired
    ///   job becomes [`backend::lease_expired`](crate::backend::lease_expired).
    /// * **[R9](crate::contract::R9)** The answer names every job that was taken, in any order.
    /// * **[R10](crate::contract::R10)** A job that another transaction has locked is left for a later call, and holds up no other.
    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>>;

    /// An administrator's word on one job. [`retry_later`](Self::retry_later), [`discard`](Self::discard) and
    /// [`promote`](Self::promote) are its named forms and tell what each does.
    ///
    /// # Contract
    /// * **[A4](crate::contract::A4)** If the job has a lease (passed or not) and loses it, `epoch + 1`.
    ///
    /// # Errors
    /// * [`NotFound`](crate::StoreError::NotFound) **[A5](crate::contract::A5)**: there is no such job.
    /// * [`Conflict`](crate::StoreError::Conflict) **[A5](crate::contract::A5)**: it is in the history.
    /// * [`Invalid`](crate::StoreError::Invalid): `reason` beyond [`Capabilities::payload_limit`].
    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()>;

    /// The job with this id, wherever it is.
    ///
    /// # Contract
    /// * **[G1](crate::contract::G1)** Live, finished, or `None` if it was never accepted or is no longer kept.
    async fn get(&self, id: JobId) -> Result<Option<Record>>;

    /// Lists live jobs, page by page.
    ///
    /// # Contract
    /// * **[G2](crate::contract::G2)** The jobs for which [`JobFilter::matches`], by id in the filter's direction, at
    ///   most `limit`. [`Page::next`] is the last id of the page if more may follow, else `None`; a page is empty
    ///   only if nothing follows. A job that stays the same is on exactly one page, whatever happens to others.
    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>>;

    /// Lists finished jobs, page by page.
    ///
    /// # Contract
    /// * **[G3](crate::contract::G3)** The same as [`jobs`](Self::jobs), for the history and
    ///   [`HistoryFilter::matches`].
    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>>;

    /// Puts dead letters back into their queues.
    ///
    /// # Contract
    /// * **[X1](crate::contract::X1)** Those for which [`Redrive::matches`], by id, until `limit` were moved.
    /// * **[X2](crate::contract::X2)** The job is live again under its id: `attempts` 0, no lease, `available_at` and
    ///   `updated_at` now; queue, kind, priority, key, payload, headers, `max_attempts`, `created_at` and
    ///   `first_leased_at` (= `started_at`) as they were.
    /// * **[X3](crate::contract::X3)** The epoch as it was when the job ended.
    /// * **[X4](crate::contract::X4)** Passed over, and named in [`Redriven::conflicts`] (the first `limit` of them, by id):
    ///   those whose unique key a live job has, an earlier one of this very call included. They do not count for `limit`.
    ///   When `limit` jobs were moved, nothing further is looked at.
    /// * **[X5](crate::contract::X5)** The history row is gone; its error is the job's `last_error`.
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid): `ids` for more than 10 000.
    async fn redrive(&self, request: &Redrive) -> Result<Redriven>;

    /// Forgets finished jobs and passed idempotency keys, and says how many.
    ///
    /// # Contract
    /// * **[U1](crate::contract::U1)** The jobs for which [`Prune::matches`].
    /// * **[U2](crate::contract::U2)** At most `limit`; fewer only if no more match.
    /// * **[U3](crate::contract::U3)** With [`PruneAge::Retention`](crate::PruneAge::Retention) each queue's own
    ///   effective retention counts.
    /// * **[U4](crate::contract::U4)** If [`Prune::forgets_keys`], then also the keys of
    ///   [`once_in`](crate::TxStore::once_in) whose retention has passed, after the jobs, as far as `limit` reaches. The answer
    ///   counts both.
    ///
    /// To clean up, call it until it answers fewer than `limit`. A job or a key that another transaction has locked may be left
    /// for the next call.
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid): `ids` for more than 10 000.
    async fn prune(&self, request: &Prune) -> Result<u64>;

    /// Sets the policy of one queue or prefix, in place of what was set for it. An empty policy removes it.
    ///
    /// # Contract
    /// * **[P9](crate::contract::P9)** It is kept as given, holds for all handles, and survives what jobs survive.
    /// * **[P8](crate::contract::P8)** [`Policies::effective`] says what holds for a queue.
    /// * **[P11](crate::contract::P11)** A policy with a field that [`Capabilities`] does not promise is refused. See
    ///   [`backend::check_policy`](crate::backend::check_policy).
    ///
    /// A queue whose effective rate limit is now another one (rate or burst) starts with a full bucket; while it stays
    /// the same, through `pause` too, its bucket stays as it is.
    ///
    /// # Errors
    /// * [`Unsupported`](crate::StoreError::Unsupported): as above; nothing was changed.
    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()>;

    /// All policies.
    async fn policies(&self) -> Result<Policies>;

    // ---- Derived. Each has a default that is made of the above.

    /// [`settle`](Self::settle) Done: the thin form for one job. `LeaseLost` is an error here.
    ///
    /// # Errors
    /// * [`LeaseLost`](crate::StoreError::LeaseLost): the receipt is stale and nothing was changed.
    /// * [`Unavailable`](crate::StoreError::Unavailable): also if another transaction has the job's row locked
    ///   (**[S14](crate::contract::S14)**). Nothing was changed; call again.
    async fn ack(&self, receipt: &Receipt, result: Json) -> Result<Settled> {
        derived::settle_one(self, "ack", receipt, Verdict::Done(result)).await
    }

    /// [`settle`](Self::settle) Retry with the queue's backoff: the thin form for one job. `LeaseLost` is an error
    /// here.
    ///
    /// # Errors
    /// * [`LeaseLost`](crate::StoreError::LeaseLost): the receipt is stale and nothing was changed.
    /// * [`Unavailable`](crate::StoreError::Unavailable): also if another transaction has the job's row locked
    ///   (**[S14](crate::contract::S14)**). Nothing was changed; call again.
    async fn nack(&self, receipt: &Receipt, error: Json) -> Result<Settled> {
        let verdict = Verdict::Retry { error, after: crate::RetryAfter::Backoff };
        derived::settle_one(self, "nack", receipt, verdict).await
    }

    /// Gives jobs back unharmed: attempt refunded, available now. The same as Snooze of zero.
    ///
    /// # Contract
    /// * **[L1](crate::contract::L1)** As [`settle`](Self::settle) with [`Verdict::release`], so that
    ///   [`Pending`](SettleOutcome::Pending) is an outcome here too (**[S14](crate::contract::S14)**).
    async fn release(&self, receipts: &[Receipt]) -> Result<Vec<SettleOutcome>> {
        derived::release(self, receipts).await
    }

    /// What each receipt is worth: the question after a lost answer or a forgotten commit.
    ///
    /// # Contract
    /// * **[G5](crate::contract::G5)** [`ReceiptStatus::of`] the job, in the order given.
    ///
    /// # Errors
    /// * [`Invalid`](crate::StoreError::Invalid): `receipts` for more than 10 000.
    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        derived::receipts(self, receipts).await
    }

    /// Makes a job available at another time, whoever holds it.
    ///
    /// # Contract
    /// * **[A1](crate::contract::A1)** `available_at` is [`Schedule::available_at`] of now; a lease is removed
    ///   (**[A4](crate::contract::A4)**); attempts and `last_error` stay. A job on its last attempt is then
    ///   [`Exhausted`](crate::JobState::Exhausted), and a dead letter after the next reclaim.
    ///
    /// # Errors
    /// As [`intervene`](Self::intervene).
    async fn retry_later(&self, id: JobId, schedule: Schedule) -> Result<()> {
        self.intervene(id, &Intervention::RetryLater(schedule)).await
    }

    /// Ends a job that is no longer wanted, whoever holds it.
    ///
    /// # Contract
    /// * **[A2](crate::contract::A2)** Finished as discarded with the reason; `processed_by` the holder, if any.
    /// * **[A4](crate::contract::A4)** The history row of a job that was held has `epoch + 1`.
    ///
    /// # Errors
    /// As [`intervene`](Self::intervene).
    async fn discard(&self, id: JobId, reason: Json) -> Result<()> {
        self.intervene(id, &Intervention::Discard { reason }).await
    }

    /// Makes a waiting job available now.
    ///
    /// # Contract
    /// * **[A3](crate::contract::A3)** Scheduled or Retrying: `available_at` now. In any other state nothing changes, and
    ///   that is no error.
    ///
    /// # Errors
    /// As [`intervene`](Self::intervene).
    async fn promote(&self, id: JobId) -> Result<()> {
        self.intervene(id, &Intervention::Promote).await
    }

    /// Up to `limit` jobs whose leases passed at least `older_than` ago and were not reclaimed, by id.
    ///
    /// # Contract
    /// * **[G4](crate::contract::G4)** `lease_until <= now - older_than`.
    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        derived::stuck(self, older_than, limit).await
    }

    /// Why a job is not running.
    ///
    /// # Contract
    /// The first that holds of [`Explanation`]'s list, in its order:
    /// * **[Y1](crate::contract::Y1)** `Unknown`, `Finished`, `DeadLetter`;
    /// * **[Y2](crate::contract::Y2)** `Leased`, `LeaseExpired`;
    /// * **[Y3](crate::contract::Y3)** `Exhausted`; then **[Y4](crate::contract::Y4)** `Paused`; then `Scheduled`,
    ///   `Retrying`;
    /// * **[Y5](crate::contract::Y5)** in a Fifo queue, `WaitsBehind` the leased job with the smallest id, or else the
    ///   live job with the smallest id if that is another;
    /// * **[Y4](crate::contract::Y4)** `ConcurrencyLimit`, `RateLimit`;
    /// * **[Y5](crate::contract::Y5)** `WaitsBehind` the first Ready job of the queue in the order of
    ///   [D6](crate::contract::D6) if that is another; else `Next`.
    async fn explain(&self, id: JobId) -> Result<Explanation> {
        derived::explain(self, id).await
    }

    /// What the limits of one queue see now.
    ///
    /// # Errors
    /// * [`Unsupported`](crate::StoreError::Unsupported): from the default of a backend that keeps rate limits, which must
    ///   override it, since only it knows its tokens.
    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        derived::usage(self, queue).await
    }

    /// Queues in numbers.
    ///
    /// # Contract
    /// * **[Q1](crate::contract::Q1)** Live jobs by [`Job::state`] at now.
    /// * **[Q2](crate::contract::Q2)** The smallest `available_at` of the Ready jobs, the number of dead letters in the
    ///   history, live jobs by `attempts`.
    /// * **[Q3](crate::contract::Q3)** Sorted by name; named queues always, others if they have live jobs or dead
    ///   letters.
    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        derived::stats(self, queues).await
    }

    /// The soonest time at which it is worth to look again: for sleeping exactly long enough.
    ///
    /// # Contract
    /// It is the earliest, over the queues asked for that are not paused, of
    /// * the end of every lease, passed ones included;
    /// * `available_at` of every other job with attempts left (of the first by id only, in a Fifo queue), unless the
    ///   queue has as many leases as it may (one, in a Fifo queue), and not before the rate limit's next token;
    /// * now for every Exhausted job.
    ///
    /// So that **[N1](crate::contract::N1)** nobody who sleeps until then is late, and **[N2](crate::contract::N2)**
    /// nobody looks in vain again and again. `None`: nothing will come by itself.
    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        derived::next_available_at(self, queues).await
    }

    /// What holds for one queue: [`Policies::effective`].
    async fn policy(&self, queue: &QueueName) -> Result<EffectivePolicy> {
        Ok(self.policies().await?.effective(queue))
    }

    /// Lets nothing be leased from these queues.
    ///
    /// # Contract
    /// * **[P10](crate::contract::P10)** Sets `paused` to true in the policy of this very pattern; the rest stays.
    ///
    /// The default reads, changes and writes; a backend shared by many should do it in one step.
    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        derived::set_paused(self, pattern, true).await
    }

    /// Ends [`pause`](Self::pause).
    ///
    /// # Contract
    /// * **[P10](crate::contract::P10)** Sets `paused` in the policy of this very pattern: to false if a wider pattern
    ///   would have the queue paused, else to nothing. The rest stays.
    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        derived::set_paused(self, pattern, false).await
    }

    /// One more handle on the same data whose work does not wait for this one's: with connections of its own, driven by
    /// the runtime on which this is called. A worker keeps its heartbeats on it. `None`, as by default: this handle is as
    /// good as any other.
    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// Hints to look at these queues now. The subscription holds when this returns.
    ///
    /// # Contract
    /// * **[W1](crate::contract::W1)** After a job of these queues has become leasable by an operation, a hint comes; one too
    ///   many does no harm. Time alone gives
    ///   none: see [`next_available_at`](Self::next_available_at).
    /// * **[W2](crate::contract::W2)** Not for other queues.
    ///
    /// Best effort: hints may be lost, or come as one; losing one must cost no more than a poll interval. The default
    /// never gives one.
    async fn wakeups(&self, _queues: &Queues) -> Result<Wakeups> {
        Ok(Box::pin(Silence(std::marker::PhantomData)))
    }

    /// Events of these queues. The subscription holds when this returns.
    ///
    /// # Contract
    /// * **[V1](crate::contract::V1)** In the order in which they happened, after they happened: in a transaction, after
    ///   its commit.
    /// * **[V2](crate::contract::V2)** A subscriber that falls behind is told how many it missed, before what came after them.
    ///
    /// The default never gives an event.
    async fn subscribe(&self, _queues: &Queues) -> Result<Events> {
        Ok(Box::pin(Silence(std::marker::PhantomData)))
    }
}

/// So that structs with an `Arc<dyn Store>` in them can derive `Debug`.
impl std::fmt::Debug for dyn Store + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("capabilities", &self.capabilities()).finish_non_exhaustive()
    }
}
