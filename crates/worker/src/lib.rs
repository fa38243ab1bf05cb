//! The runtime of Leasehold: claims jobs from any [`Store`], runs their handlers, keeps their leases
//! alive and settles them.
//!
//! ```no_run
//! use std::sync::Arc;
//! use leasehold_core::{JobKind, Store};
//! use leasehold_worker::{Context, Worker};
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
//! struct App {
//!     sender: String,
//! }
//!
//! async fn send_mail(mail: SendMail, context: Context<App>) -> Result<(), std::io::Error> {
//!     println!("{} writes to {}", context.state().sender, mail.to);
//!     Ok(())
//! }
//!
//! # async fn example(store: Arc<dyn Store>) -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder(store)
//!     .state(App { sender: "ada@example.com".to_owned() })
//!     .queue("mail")
//!     .concurrency(50)
//!     .handle::<SendMail>(send_mail)
//!     .start()?;
//! worker.run_until_signal().await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod call;
mod context;
mod dispatch;
mod execute;
mod handle;
mod handler;
mod heart;
mod hints;
mod leases;
mod outage;
mod panics;
mod report;
mod router;
mod sample;
mod settle;
mod signals;
mod source;
mod span;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

use std::sync::Arc;

use leasehold_core::Store;

pub use crate::builder::{QueueOptions, WorkerBuilder};
pub use crate::context::{Context, Execution};
pub use crate::dispatch::Stopped;
pub use crate::handle::WorkerHandle;
pub use crate::handler::{Done, Handler, IntoSettled, IntoVerdict, TxHandler};
pub use crate::heart::HeartbeatOn;
pub use crate::report::{FailureKind, WorkerEvent, WorkerStats};
pub use crate::router::{Ending, HandlerService};
pub use crate::watch::WorkerDied;

/// Where workers begin.
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// A worker for the jobs of this store.
    #[allow(clippy::new_ret_no_self, reason = "it is a builder")]
    pub fn builder(store: Arc<dyn Store>) -> WorkerBuilder {
        WorkerBuilder::new(store)
    }
}

/// The guide is compiled and run, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/worker.md")]
struct Guide;
