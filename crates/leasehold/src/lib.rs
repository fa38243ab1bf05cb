//! A job queue that lives in the database you already run.
//!
//! * A worker holds a job on a **lease**. If it dies, the job is tried again; if it is merely slow, its heartbeats keep the
//!   lease.
//! * Each lease has a **receipt**. Whoever lost the lease has a stale one, and can settle nothing with it.
//! * A handler can settle its job **in the same transaction as its own writes**: both happen, or neither does, whatever
//!   crashes when.
//!
//! # The first job
//!
//! ```
//! # #[cfg(all(feature = "memory", feature = "worker"))]
//! # mod example {
//! use std::time::Duration;
//! use leasehold::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail {
//!     to: String,
//! }
//!
//! impl JobKind for SendMail {
//!     const KIND: &'static str = "send_mail";
//! }
//!
//! async fn send_mail(mail: SendMail, _: Context) -> Result<(), std::io::Error> {
//!     println!("dear {}, …", mail.to);
//!     Ok(())
//! }
//!
//! # pub
//! async fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let store = leasehold::connect("memory:").await?; // or "sqlite://jobs.db", "postgres://…"
//!     let worker = Worker::builder(store.clone()).queue("mail").handle::<SendMail>(send_mail).start()?;
//!     let mut events = worker.events();
//!
//!     store.enqueue(&[NewJob::of("mail", &SendMail { to: "ada@example.com".to_owned() }).build()?]).await?;
//!
//!     while !matches!(events.recv().await?, WorkerEvent::Settled { .. }) {}
//!     worker.shutdown(Duration::from_secs(5)).await?;
//!     Ok(())
//! }
//! # }
//! # #[cfg(all(feature = "memory", feature = "worker"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { example::run().await.unwrap() }
//! # #[cfg(not(all(feature = "memory", feature = "worker")))]
//! # fn main() {}
//! ```
//!
//! In a program of its own, `worker.run_until_signal().await` works until the process is told to end, and then gracefully.
//!
//! # Retries
//!
//! A handler that returns an error, panics or takes too long has failed: the job is tried again, later and later, until its
//! attempts are spent (5, or [`NewJobBuilder::max_attempts`]). A handler that knows better returns a [`Verdict`].
//!
//! ```
//! # #[cfg(feature = "worker")]
//! # mod example {
//! # use std::time::Duration;
//! # use leasehold::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct SendMail { to: String }
//! # impl JobKind for SendMail { const KIND: &'static str = "send_mail"; }
//! async fn send_mail(mail: SendMail, context: Context) -> Result<Verdict, StoreError> {
//!     match mail.to.as_str() {
//!         "" => Ok(Verdict::dead("no address")),                                     // trying again is no use
//!         "list" => Ok(Verdict::discard("not any more")),                            // nobody wants it
//!         "bob" => Ok(Verdict::retry_after("bob is out", Duration::from_secs(3600))?), // an attempt is spent
//!         _ if context.attempt() > 3 => Ok(Verdict::snooze(Duration::from_secs(60))?), // none is
//!         _ => Ok(Verdict::done()),
//!     }
//! }
//! # }
//! ```
//!
//! # Dead letters
//!
//! A job whose attempts are spent, or whose handler has given it up, is a dead letter in the history. It stays there with its last
//! error until it is put back or pruned.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::prelude::*;
//! use leasehold::{BatchSize, Dequeue, FinalStatus, HistoryFilter, Redrive};
//!
//! let store = leasehold::connect("memory:").await?;
//! store.enqueue(&[NewJob::builder("mail", "send_mail").build()?]).await?;
//! for job in store.dequeue(&Dequeue::new("mail", "me")?).await? {
//!     store.settle(&[(job.receipt(), Verdict::dead("no address"))]).await?; // as a worker would
//! }
//!
//! let dead = HistoryFilter { statuses: Some(vec![FinalStatus::DeadLetter]), ..HistoryFilter::default() };
//! for job in store.history(&dead).await?.items {
//!     println!("job {} of {}: {:?}", job.id, job.queue, job.last_error);
//! }
//! // The cause is mended: all of them get their attempts back, and are ready at once.
//! let redriven = store.redrive(&Redrive::all(BatchSize::MAX)).await?;
//! assert_eq!(redriven.jobs.len(), 1);
//! # Ok(()) }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! # Settling in your own transaction
//!
//! ```
//! # #[cfg(all(feature = "memory", feature = "worker"))]
//! # mod example {
//! # use leasehold::prelude::*;
//! # use leasehold::memory::MemoryStore;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct Pay { cents: u64 }
//! # impl JobKind for Pay { const KIND: &'static str = "pay"; }
//! // Registered with `.state(store)` and `.handle_tx::<Pay>(pay)`.
//! async fn pay(pay: Pay, context: Context<MemoryStore>) -> Result<Settled, StoreError> {
//!     let store = context.state();
//!     let mut tx = store.begin(); // on Postgres: your own `conn.transaction(…)`
//!     tx.put("paid", Json::new(&pay.cents)?)?;
//!     let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
//!     tx.commit()?;
//!     Ok(settled)
//! }
//! # }
//! ```
//!
//! [`Settled`] is made only by a store, so a handler that forgets to settle does not compile. If the lease was lost meanwhile,
//! `ack_in` says so, and `?` rolls the payment back.
//!
//! # Testing
//!
//! The feature `testing` has a queue in memory with a clock that you move, a worker that takes one step at a time, and crashes at
//! named points: no server, no sleeping.
//!
//! ```
//! # #[cfg(feature = "testing")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::prelude::*;
//! use leasehold::testing::{Crash, TestQueue};
//! # use std::time::Duration;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct SendMail { to: String }
//! # impl JobKind for SendMail { const KIND: &'static str = "send_mail"; }
//! # async fn send_mail(_: SendMail, _: Context) {}
//!
//! let queue = TestQueue::new();
//! let worker = queue.worker().queue("mail").handle::<SendMail>(send_mail).test()?;
//! queue.enqueue("mail", &SendMail { to: "ada@example.com".to_owned() }).await?;
//!
//! worker.crash(Crash::InHandler).await?; // as by `kill -9`
//! queue.advance(Duration::from_secs(60)); // the lease passes
//! let ran = worker.run_one().await?.expect("the job is there still");
//! assert_eq!(ran.job.attempts, 2);
//! # Ok(()) }
//! # #[cfg(not(feature = "testing"))]
//! # fn main() {}
//! ```
//!
//! # Choosing a backend
//!
//! | | feature | jobs survive | share your transaction | several processes |
//! | --- | --- | --- | --- | --- |
//! | memory | `memory` | nothing | with its own values | no |
//! | SQLite | `sqlite` | everything that the file does | diesel's `SqliteConnection` | on one machine |
//! | Postgres | `postgres` | everything that Postgres does | diesel-async; sqlx and tokio-postgres by `postgres-sqlx`, `postgres-tokio` | yes |
//! | MySQL, MariaDB | `mysql` | everything that the server does | diesel-async | yes |
//! | Redis | `redis` | what its append-only file does | no | yes |
//!
//! Take the database that your business data is in: that is what makes settling in one transaction possible. Your own
//! backend is a [`Store`] that passes the suite of the crate `leasehold-conformance`.

mod connect;

pub use leasehold_core::*;
#[cfg(feature = "macros")]
pub use leasehold_macros::JobKind;
#[cfg(feature = "memory")]
pub use leasehold_memory as memory;
#[cfg(feature = "mysql")]
pub use leasehold_mysql as mysql;
#[cfg(feature = "postgres")]
pub use leasehold_postgres as postgres;
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite as sqlite;
#[cfg(feature = "worker")]
pub use leasehold_worker as worker;
#[cfg(feature = "testing")]
pub use leasehold_worker::testing;
#[cfg(feature = "worker")]
pub use leasehold_worker::{
    Context, Done, Ending, Execution, FailureKind, QueueOptions, Stopped, Worker, WorkerBuilder, WorkerEvent,
    WorkerHandle, WorkerStats,
};

pub use crate::connect::{ConnectError, connect};

/// What nearly every program needs.
pub mod prelude {
    pub use leasehold_core::{Job, JobKind, Json, NewJob, Settled, Store, StoreError, TxStore, Verdict};
    #[cfg(feature = "macros")]
    pub use leasehold_macros::JobKind;
    #[cfg(feature = "worker")]
    pub use leasehold_worker::{Context, Done, Worker, WorkerEvent, WorkerHandle};
}
