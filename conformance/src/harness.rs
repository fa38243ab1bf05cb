//! What a backend author writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    BoxError, Enqueued, IdempotencyKey, JobId, NewJob, Receipt, Result, Settled, Store, Verdict,
};

/// An isolation level. From `REPEATABLE READ` on, the transaction sees the database as it was at its first statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// `READ UNCOMMITTED`
    ReadUncommitted,
    /// `READ COMMITTED`
    ReadCommitted,
    /// `REPEATABLE READ`
    RepeatableRead,
    /// `SERIALIZABLE`
    Serializable,
}

impl Isolation {
    /// Every level.
    pub const ALL: [Self; 4] =
        [Self::ReadUncommitted, Self::ReadCommitted, Self::RepeatableRead, Self::Serializable];

    /// How SQL calls it.
    pub fn sql(self) -> &'static str {
        match self {
            Self::ReadUncommitted => "READ UNCOMMITTED",
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        }
    }
}

/// How a transaction can end although nobody has called [`commit`](Transaction::commit) or [`rollback`](Transaction::rollback).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The user's own SQL says `COMMIT`.
    Commit,
    /// The user's own SQL says `ROLLBACK`.
    Rollback,
    /// A statement that commits by itself, such as `CREATE TABLE` or `TRUNCATE` on some servers.
    Definition,
    /// A deadlock of the user's own rows, which this transaction loses.
    Deadlock,
    /// A statement of the user's that fails, and with which the database undoes the whole transaction, or refuses to go on with it.
    Failure,
}

impl Ending {
    /// Every one of them.
    pub const ALL: [Self; 5] =
        [Self::Commit, Self::Rollback, Self::Definition, Self::Deadlock, Self::Failure];
}

/// How the suite gets at a backend.
///
/// Checks run in parallel, each on a database of its own, each on a multi-threaded tokio runtime of its own, and each for
/// 120 s at most.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// One database, as a person would name it: a path, a schema, a pool, an `Arc` of memory.
    type Database: Send + Sync + 'static;

    /// The backend's name, for reports: that of the harness's type, unless it is given.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Makes a database that is empty and that nobody else has.
    async fn create(&self) -> Result<Self::Database, BoxError>;

    /// Clears a database away after its check. Handles on it may still be open.
    async fn destroy(&self, _database: &Self::Database) -> Result<(), BoxError> {
        Ok(())
    }

    /// Opens one more handle on the database, as one more process would: nothing is shared with the other handles but
    /// what the database itself holds, and an injected clock. Of a store in memory the clone is a handle.
    async fn connect(&self, database: &Self::Database) -> Result<Arc<dyn Store>, BoxError>;

    /// Lets time pass, as far as anybody can see: moves an injected clock forward, or shifts every stored time (of
    /// jobs, history, rate limits and idempotency keys) back by this much. Called only while no operation is running and no transaction is
    /// open. An injected clock may stand still otherwise. Start it at a time with odd nanoseconds, far from now: then a
    /// store that keeps too much, or looks at the wrong clock, is caught.
    async fn age(&self, database: &Self::Database, by: Duration) -> Result<(), BoxError>;

    /// Sets the store's clock back, as far as anybody can see: moves an injected clock back, or shifts every stored time forward
    /// by this much, which is never more than was aged before. Called as [`age`](Self::age) is. False, as by default, if that
    /// cannot be done: for a store whose clock never goes back, for example.
    async fn set_back(&self, _database: &Self::Database, _by: Duration) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Remembers all that is stored, for [`lose`](Self::lose). False, as by default, for a database that loses nothing it has answered.
    async fn save(&self, _database: &Self::Database) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Brings back what was saved, as a failover does that has lost the writes since then. The clock goes on. Handles stay open.
    async fn lose(&self, _database: &Self::Database) -> Result<(), BoxError> {
        Ok(())
    }

    /// Puts a dead letter into the history that has the id of this live job, and otherwise what the job has, as the restore of an older backup may.
    /// False, as by default, if the two cannot be stored at the same time.
    async fn finish_twin(&self, _database: &Self::Database, _id: JobId) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Opens a transaction. `None`, as by default, if the backend is no [`TxStore`](leasehold_core::TxStore).
    async fn begin(&self, _database: &Self::Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(None)
    }

    /// Opens a transaction at an isolation level. [`begin`](Self::begin), as by default, if the backend has one level only.
    async fn begin_at(
        &self,
        database: &Self::Database,
        _level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        self.begin(database).await
    }

    /// Gives a connection on which no transaction was opened. `None`, as by default, if the type of connection is always a
    /// transaction.
    async fn no_transaction(
        &self,
        _database: &Self::Database,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(None)
    }

    /// What [`Transaction::write`] has written and was committed, in any order. Nothing, as by default, without transactions.
    async fn ledger(&self, _database: &Self::Database) -> Result<Vec<String>, BoxError> {
        Ok(Vec::new())
    }

    /// How many random sequences each model-based check tries within 40 s. Default: 64. More where a store is fast.
    fn model_cases(&self) -> u32 {
        64
    }

    /// How long each race goes on beyond its fewest rounds: 400 ms. The longer, the more chances to be wrong.
    fn race_budget(&self) -> Duration {
        Duration::from_millis(400)
    }
}

/// A harness can be shared, so that [`run`](crate::run) takes any.
#[async_trait]
impl<H: Harness> Harness for Arc<H> {
    type Database = H::Database;

    fn name(&self) -> &str {
        H::name(self)
    }

    async fn create(&self) -> Result<Self::Database, BoxError> {
        H::create(self).await
    }

    async fn destroy(&self, database: &Self::Database) -> Result<(), BoxError> {
        H::destroy(self, database).await
    }

    async fn connect(&self, database: &Self::Database) -> Result<Arc<dyn Store>, BoxError> {
        H::connect(self, database).await
    }

    async fn age(&self, database: &Self::Database, by: Duration) -> Result<(), BoxError> {
        H::age(self, database, by).await
    }

    async fn set_back(&self, database: &Self::Database, by: Duration) -> Result<bool, BoxError> {
        H::set_back(self, database, by).await
    }

    async fn save(&self, database: &Self::Database) -> Result<bool, BoxError> {
        H::save(self, database).await
    }

    async fn lose(&self, database: &Self::Database) -> Result<(), BoxError> {
        H::lose(self, database).await
    }

    async fn finish_twin(&self, database: &Self::Database, id: JobId) -> Result<bool, BoxError> {
        H::finish_twin(self, database, id).await
    }

    async fn begin(&self, database: &Self::Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        H::begin(self, database).await
    }

    async fn begin_at(
        &self,
        database: &Self::Database,
        level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        H::begin_at(self, database, level).await
    }

    async fn no_transaction(
        &self,
        database: &Self::Database,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        H::no_transaction(self, database).await
    }

    async fn ledger(&self, database: &Self::Database) -> Result<Vec<String>, BoxError> {
        H::ledger(self, database).await
    }

    fn model_cases(&self) -> u32 {
        H::model_cases(self)
    }

    fn race_budget(&self) -> Duration {
        H::race_budget(self)
    }
}

/// A user's transaction: a connection with the operations of [`TxStore`](leasehold_core::TxStore) and one business
/// write. Dropping it must roll it back.
#[async_trait]
pub trait Transaction: Send {
    /// [`TxStore::enqueue_in`](leasehold_core::TxStore::enqueue_in) on this connection.
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    /// [`TxStore::settle_in`](leasehold_core::TxStore::settle_in) on this connection.
    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled>;

    /// [`TxStore::lock_in`](leasehold_core::TxStore::lock_in) on this connection.
    async fn lock_in(&mut self, receipt: Receipt) -> Result<()>;

    /// [`TxStore::once_in`](leasehold_core::TxStore::once_in) on this connection.
    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool>;

    /// Writes one row of business data that is the user's own, such as an insert into a table `ledger`. Entries are
    /// not unique: the same one written twice is two rows.
    async fn write(&mut self, entry: &str) -> Result<(), BoxError>;

    /// Reads the rows of business data as this transaction sees them, in any order. Where transactions have a snapshot of the
    /// database, they have it from here on at the latest.
    async fn read(&mut self) -> Result<Vec<String>, BoxError>;

    /// Ends the transaction in this way, without the connection's being told. It is not used any more but for operations that must be refused.
    /// False, as by default, if that cannot happen to a transaction of this backend.
    async fn end(&mut self, _how: Ending) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Commits.
    ///
    /// # Errors
    /// Whatever the database says. Then nothing of the transaction counts.
    async fn commit(self: Box<Self>) -> Result<(), BoxError>;

    /// Rolls back.
    async fn rollback(self: Box<Self>) -> Result<(), BoxError>;
}
