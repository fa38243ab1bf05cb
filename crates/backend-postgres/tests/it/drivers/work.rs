//! What the tests do in a transaction, whatever it runs on.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Fate, IdempotencyKey, Job, JobId, Json, NewJob, Receipt, StoreError, TxStore, Verdict};
use leasehold_postgres::{PgStore, TxError};

use super::driver::{Business, Work};
use super::world::{World, job, keyed_job};

const HOUR: Duration = Duration::from_secs(3600);

/// Writes a business row and settles the job.
pub(crate) struct AckPaid(pub(crate) Receipt);

#[async_trait]
impl Work for AckPaid {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        conn.statement(&world.insert()).await?;
        let settled = world.store.ack_in(conn, &self.0, Json::null()).await?;
        assert_eq!((settled.receipt(), settled.fate()), (self.0, Fate::Completed));
        assert_eq!(world.written().await, 0, "seen before the commit");
        Ok(())
    }
}

/// Does the work, and fails then.
pub(crate) struct Undo<W>(pub(crate) W);

#[async_trait]
impl<W: Work> Work for Undo<W> {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        self.0.run(world, conn).await?;
        Err(diesel::result::Error::RollbackTransaction.into())
    }
}

/// Meets every outcome that is no error of the database's, and writes a business row then.
pub(crate) struct ExpectedOutcomes {
    pub(crate) stale: Receipt,
    pub(crate) first: JobId,
}

#[async_trait]
impl Work for ExpectedOutcomes {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        let refused = world.store.ack_in(conn, &self.stale, Json::null()).await.unwrap_err();
        assert!(refused.is_lease_lost(), "{refused:?}");
        let jobs = [keyed_job("mail", "there"), keyed_job("mail", "new"), keyed_job("mail", "new")];
        let answers = world.store.enqueue_in(conn, &jobs).await?;
        assert_eq!(answers.iter().map(|answer| answer.deduplicated).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!((answers[0].id, answers[1].id), (self.first, answers[2].id));
        assert_eq!(world.store.enqueue_in(conn, &jobs[1..2]).await?[0], answers[2]);
        OnceTwice { is_first: true }.take(world, conn).await?;
        conn.statement(&world.insert()).await
    }
}

/// Takes one key, and takes it again.
pub(crate) struct OnceTwice {
    pub(crate) is_first: bool,
}

impl OnceTwice {
    pub(crate) async fn take<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        assert_eq!(world.store.once_in(conn, &key()).await?, self.is_first);
        assert!(!world.store.once_in(conn, &key()).await?);
        Ok(())
    }
}

#[async_trait]
impl Work for OnceTwice {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        self.take(world, conn).await
    }
}

/// Settles each job in another way.
pub(crate) struct EveryVerdict<'a>(pub(crate) &'a [Job]);

impl EveryVerdict<'_> {
    pub(crate) const COUNT: usize = 6;

    fn verdicts() -> [Verdict; EveryVerdict::COUNT] {
        [
            Verdict::done_with("result").unwrap(),
            Verdict::retry("backoff"),
            Verdict::retry_after("delay", HOUR).unwrap(),
            Verdict::snooze(HOUR).unwrap(),
            Verdict::dead("no"),
            Verdict::discard("no"),
        ]
    }
}

#[async_trait]
impl Work for EveryVerdict<'_> {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        let now = leasehold_core::Store::now(&world.store).await?;
        for (place, (job, verdict)) in self.0.iter().zip(Self::verdicts()).enumerate() {
            let fate = world.store.settle_in(conn, &job.receipt(), verdict).await?.fate();
            let is_right = match fate {
                Fate::Completed => place == 0,
                Fate::Retrying { available_at } if place == 1 => available_at > now,
                Fate::Retrying { available_at } => place == 2 && available_at >= now + HOUR,
                Fate::Snoozed { available_at } => place == 3 && available_at >= now + HOUR,
                Fate::DeadLettered => place == 4,
                Fate::Discarded => place == 5,
            };
            assert!(is_right, "verdict {place} had the fate {fate:?}");
        }
        Ok(())
    }
}

/// Is refused everything.
pub(crate) struct Refused(pub(crate) Receipt);

#[async_trait]
impl Work for Refused {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        let enqueued = world.store.enqueue_in(conn, &[job("mail")]).await;
        assert!(matches!(enqueued, Err(StoreError::NoTransaction { operation: "enqueue_in" })));
        let settled = world.store.ack_in(conn, &self.0, Json::null()).await;
        assert!(matches!(settled, Err(StoreError::NoTransaction { operation: "settle_in" })));
        let taken = world.store.once_in(conn, &key()).await;
        assert!(matches!(taken, Err(StoreError::NoTransaction { operation: "once_in" })));
        Ok(())
    }
}

/// Enqueues one job, and another in a savepoint that is undone.
pub(crate) struct WithSavepoint;

#[async_trait]
impl Work for WithSavepoint {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        conn.enqueue_and_undo(&world.store, &[keyed_job("mail", "a"), job("mail")]).await?;
        let enqueued = world.store.enqueue_in(conn, &[keyed_job("mail", "a")]).await?;
        assert!(!enqueued[0].deduplicated);
        Ok(())
    }
}

/// Enqueues a job.
pub(crate) struct Enqueue(pub(crate) NewJob);

#[async_trait]
impl Work for Enqueue {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        world.store.enqueue_in(conn, std::slice::from_ref(&self.0)).await?;
        Ok(())
    }
}

/// Loses its connection before it settles.
pub(crate) struct Lose(pub(crate) Receipt);

#[async_trait]
impl Work for Lose {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        conn.statement(&world.insert()).await?;
        world.terminate_writers().await;
        let lost = world.store.ack_in(conn, &self.0, Json::null()).await.unwrap_err();
        assert!(lost.is_retryable(), "{lost:?}");
        Err(lost.into())
    }
}

/// Wants a key that another has, and does not wait for long.
pub(crate) struct WaitForKey;

#[async_trait]
impl Work for WaitForKey {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>,
    {
        conn.statement("SET LOCAL lock_timeout = '20ms'").await?;
        world.store.once_in(conn, &key()).await?;
        Ok(())
    }
}

fn key() -> IdempotencyKey {
    IdempotencyKey::new("order 1").unwrap()
}
