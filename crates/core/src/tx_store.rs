//! The trait of backends that can share the caller's transaction.

use async_trait::async_trait;

use crate::error::Result;
use crate::job::Receipt;
use crate::json::Json;
use crate::name::IdempotencyKey;
use crate::new_job::{Enqueued, NewJob};
use crate::store::Store;
use crate::verdict::{RetryAfter, Settled, Verdict};

/// A store that speaks on the caller's own transaction.
///
/// `C` is the connection or transaction that the caller's own writes run on. The caller opens, owns and commits it;
/// the store only speaks on it. One store may implement this for several `C`.
///
/// ```
/// use leasehold_core::{Json, Job, Result, Settled, TxStore};
///
/// /// A handler that cannot forget to settle: it must return the proof.
/// async fn pay<S, C>(store: &S, tx: &mut C, job: &Job) -> Result<Settled>
/// where
///     S: TxStore<C> + ?Sized,
///     C: Send,
/// {
///     // … the handler's own writes on `tx` …
///     store.ack_in(tx, &job.receipt(), Json::null()).await
///     // The caller commits. If the lease was lost, `?` rolls the handler's writes back.
/// }
/// ```
///
/// # Contract
/// * **[T6](crate::contract::T6)** An expected outcome — a duplicate, a second `once`, a lost lease — never spoils
///   the transaction: it can go on and commit.
/// * **[T8](crate::contract::T8)** A transaction that is dropped without commit leaves nothing, no lock either.
/// * **[T7](crate::contract::T7)** If the job is taken, settled or reclaimed by another between `settle_in` and the
///   commit, either that other waits or fails, or the commit fails and nothing of the transaction counts. The same for a
///   unique key or an idempotency key that another takes meanwhile. A duplicate that was answered with a live job stays
///   answered so, also if that job has finished by the time of the commit.
///
/// # Isolation levels
/// The worker's heartbeats write to the job's row while the handler runs.
/// * At READ COMMITTED that does not matter.
/// * At REPEATABLE READ and SERIALIZABLE the transaction sees the row as it was at its first statement. If a heartbeat comes
///   after that, the database refuses [`settle_in`](Self::settle_in). So [`lock_in`](Self::lock_in) must be the first
///   statement: from then on heartbeats leave the row alone. A transaction that began before the lease cannot see it, and is
///   refused as [`Unavailable`](crate::StoreError::Unavailable), or sees it, but it never loses the lease for that.
///
/// # Errors
/// * [`NoTransaction`](crate::StoreError::NoTransaction) **[T4](crate::contract::T4)**: `conn` has no open
///   transaction, or the database has ended the one that was opened: by a deadlock, a statement that commits by itself, or a
///   `COMMIT` in the caller's own SQL. Nothing was done. What the caller has written in that transaction may be lost, so let it fail.
/// * [`Invalid`](crate::StoreError::Invalid): as outside.
/// * [`Unavailable`](crate::StoreError::Unavailable): the database gave the transaction up (a deadlock, a serialization
///   failure, a lost connection). Roll it back and run it again from the start. At REPEATABLE READ and SERIALIZABLE that
///   helps only if the first statement is [`lock_in`](Self::lock_in): otherwise a handler that lasts longer than the time
///   between two heartbeats fails every time.
///
/// # Time
/// Times are those of each call, not of the beginning or the commit of the transaction.
///
/// # Cancel safety
/// As [`Store`]: after a drop the transaction may be unfit for use, and rolling it back must work.
#[async_trait]
pub trait TxStore<C: Send + ?Sized>: Store {
    /// [`Store::enqueue`] on the caller's transaction.
    ///
    /// # Contract
    /// * **[T1](crate::contract::T1)** The jobs exist once the transaction has committed, and never before or otherwise.
    ///   The ids are known at once, and are given to nobody else while the transaction is open or if it commits.
    async fn enqueue_in(&self, conn: &mut C, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    /// [`Store::settle`] of one job on the caller's transaction.
    ///
    /// # Contract
    /// * **[T2](crate::contract::T2)** It counts once the transaction has committed, and leaves no trace otherwise.
    /// * **[T9](crate::contract::T9)** Every verdict does what it does outside.
    ///
    /// If another transaction has the job's row locked, this call may wait for it, unlike [`Store::settle`]: for how long
    /// is a setting of the caller's connection, such as `lock_timeout`.
    ///
    /// # Errors
    /// * [`LeaseLost`](crate::StoreError::LeaseLost) **[T3](crate::contract::T3)**: the receipt is stale, or was
    ///   settled in this transaction before.
    async fn settle_in(&self, conn: &mut C, receipt: &Receipt, verdict: Verdict) -> Result<Settled>;

    /// Locks the job of `receipt` until the caller's transaction ends.
    ///
    /// Call it as the first statement of a transaction at REPEATABLE READ or SERIALIZABLE. At READ COMMITTED it is optional:
    /// there it keeps the job from being reclaimed while the handler works. The lock does not settle the job:
    /// [`settle_in`](Self::settle_in) does that, later in the same transaction.
    ///
    /// ```
    /// use leasehold_core::{Json, Job, Result, Settled, TxStore};
    ///
    /// async fn pay<S, C>(store: &S, tx: &mut C, job: &Job) -> Result<Settled>
    /// where
    ///     S: TxStore<C> + ?Sized,
    ///     C: Send,
    /// {
    ///     store.lock_in(tx, job.receipt()).await?;
    ///     // … reads and writes on `tx`, for longer than a heartbeat …
    ///     store.ack_in(tx, &job.receipt(), Json::null()).await
    /// }
    /// ```
    ///
    /// # Contract
    /// * **[T10](crate::contract::T10)** Until the transaction ends, no reclaim, verdict or intervention takes the job. A
    ///   heartbeat is answered [`Pending`](crate::HeartbeatOutcome::Pending), which the worker counts as alive for a
    ///   transactional handler. The transaction can settle the job at every isolation level.
    /// * **[S10](crate::contract::S10)** A lease that has passed, but was not reclaimed, can be locked.
    ///
    /// If another transaction has the job's row locked, this call may wait for it, as [`settle_in`](Self::settle_in) may.
    ///
    /// # Errors
    /// * [`LeaseLost`](crate::StoreError::LeaseLost) **[T3](crate::contract::T3)**: the receipt is stale, or was
    ///   settled in this transaction before. Nothing is locked, and the transaction stays fit for use.
    /// * [`Unavailable`](crate::StoreError::Unavailable): also if a heartbeat was written at the same moment. Roll back and
    ///   run the transaction again.
    async fn lock_in(&self, conn: &mut C, receipt: Receipt) -> Result<()>;

    /// Remembers `key` on the caller's transaction: true the first time, false for as long as the key is kept.
    ///
    /// # Contract
    /// * **[T5](crate::contract::T5)** One transaction that commits is answered true. Later ones are answered false for as long
    ///   as the key is kept, and so is a second call in the same transaction; a rollback forgets. Of two open at once, at most
    ///   one commits with true.
    ///
    /// # Time
    /// A key is kept for at least its [retention](IdempotencyKey::retention), 30 days unless set, from this call on. Later calls
    /// do not prolong it. When that time has passed, the next [`Store::prune`] that names no queues, statuses or ids forgets the
    /// key (**[U4](crate::contract::U4)**). Until then the answer is false.
    async fn once_in(&self, conn: &mut C, key: &IdempotencyKey) -> Result<bool>;

    /// [`settle_in`](Self::settle_in) Done.
    async fn ack_in(&self, conn: &mut C, receipt: &Receipt, result: Json) -> Result<Settled> {
        self.settle_in(conn, receipt, Verdict::Done(result)).await
    }

    /// [`settle_in`](Self::settle_in) Retry with the queue's backoff.
    async fn nack_in(&self, conn: &mut C, receipt: &Receipt, error: Json) -> Result<Settled> {
        self.settle_in(conn, receipt, Verdict::Retry { error, after: RetryAfter::Backoff }).await
    }
}
