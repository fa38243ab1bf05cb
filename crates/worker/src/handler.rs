//! What a handler is, and what it may return.

use std::fmt::Display;
use std::future::Future;

use leasehold_core::{Invalid, Json, Settled, Verdict};
use serde::Serialize;

use crate::context::Context;

/// Does the work of jobs with payloads of type `K`. Every `async fn(K, Context<S>)` that returns an [`IntoVerdict`] is one.
///
/// ```
/// use leasehold_core::{JobKind, Verdict};
/// use leasehold_worker::Context;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct SendMail { to: String }
/// # impl JobKind for SendMail { const KIND: &'static str = "send_mail"; }
///
/// // Ends well or fails: a failure is tried again.
/// async fn send(mail: SendMail, _: Context<()>) -> Result<(), std::io::Error> {
///     Ok(())
/// }
///
/// // Says itself what becomes of the job.
/// async fn judge(mail: SendMail, _: Context<()>) -> Verdict {
///     if mail.to.is_empty() { Verdict::dead("nobody to send it to") } else { Verdict::done() }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "this does not handle jobs with a payload of `{K}`",
    label = "not a handler of `{K}`",
    note = "a handler is an `async fn(payload: {K}, context: Context<{S}>)`, and returns (), a Verdict, a Done<T>, or a Result of one of these whose error implements Display",
    note = "it must be Clone + Send + Sync + 'static, and its future must be Send"
)]
pub trait Handler<K, S>: Clone + Send + Sync + 'static {
    /// Does the work of one job.
    fn call(&self, payload: K, context: Context<S>) -> impl Future<Output = Verdict> + Send;
}

impl<F, Fut, K, S> Handler<K, S> for F
where
    F: Fn(K, Context<S>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send,
{
    fn call(&self, payload: K, context: Context<S>) -> impl Future<Output = Verdict> + Send {
        let work = self(payload, context);
        async move { work.await.into_verdict() }
    }
}

/// Does the work of jobs with payloads of type `K` and settles them itself, in a transaction of its own. Every
/// `async fn(K, Context<S>) -> Result<Settled, E>` is one.
///
/// A [`Settled`] is made only by a store, so a handler that forgets to settle does not compile:
///
/// ```compile_fail
/// # use leasehold_core::{JobKind, Settled};
/// # use leasehold_worker::{Context, Worker};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Pay { cents: u64 }
/// # impl JobKind for Pay { const KIND: &'static str = "pay"; }
/// # fn example(store: std::sync::Arc<dyn leasehold_core::Store>) {
/// async fn pay(_: Pay, _: Context<()>) -> Result<(), std::io::Error> {
///     Ok(()) // the money was moved, and nobody told the queue
/// }
/// let worker = Worker::builder(store).queue("payments").handle_tx::<Pay>(pay);
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "this does not handle jobs with a payload of `{K}` in a transaction",
    label = "not a transactional handler of `{K}`",
    note = "it is an `async fn(payload: {K}, context: Context<{S}>) -> Result<Settled, E>`, where E implements Display",
    note = "`Settled` comes from `ack_in`, `nack_in` or `settle_in` of the store, called with `context.receipt()` inside the transaction"
)]
pub trait TxHandler<K, S>: Clone + Send + Sync + 'static {
    /// Does the work of one job.
    fn call(&self, payload: K, context: Context<S>) -> impl Future<Output = Result<Settled, Verdict>> + Send;
}

impl<F, Fut, K, S> TxHandler<K, S> for F
where
    F: Fn(K, Context<S>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoSettled> + Send,
{
    fn call(&self, payload: K, context: Context<S>) -> impl Future<Output = Result<Settled, Verdict>> + Send {
        let work = self(payload, context);
        async move { work.await.into_settled() }
    }
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "says nothing about the job",
    note = "return (), a Verdict, a Done<T>, or a Result of one of these whose error implements Display"
)]
pub trait IntoVerdict {
    /// What becomes of the job.
    fn into_verdict(self) -> Verdict;
}

impl IntoVerdict for () {
    fn into_verdict(self) -> Verdict {
        Verdict::done()
    }
}

impl IntoVerdict for Verdict {
    fn into_verdict(self) -> Verdict {
        self
    }
}

/// An error is a failed attempt: the job is tried again as its queue's backoff says, until its attempts are spent. The
/// error's alternate form (`{:#}`) is kept, in which many error types tell their causes.
impl<T: IntoVerdict, E: Display> IntoVerdict for Result<T, E> {
    fn into_verdict(self) -> Verdict {
        match self {
            Ok(value) => value.into_verdict(),
            Err(error) => failed(&error),
        }
    }
}

/// The work was done, with a result that is kept in the history. A result that does not become JSON, or is larger than the
/// store takes, is replaced by `{"refused": why}`: the work was done all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done<T>(pub T);

impl<T: Serialize> IntoVerdict for Done<T> {
    fn into_verdict(self) -> Verdict {
        let refused = |invalid: Invalid| Verdict::Done(crate::settle::refused(&invalid.to_string()));
        Verdict::done_with(&self.0).unwrap_or_else(refused)
    }
}

/// What a transactional handler may return: `Result<Settled, E>`.
#[diagnostic::on_unimplemented(
    message = "a transactional handler cannot return `{Self}`",
    label = "no proof that the job was settled",
    note = "return `Result<Settled, E>`, where E implements Display: `Settled` comes from `ack_in`, `nack_in` or `settle_in`"
)]
pub trait IntoSettled {
    /// The proof, or what becomes of the job that failed.
    fn into_settled(self) -> Result<Settled, Verdict>;
}

impl<E: Display> IntoSettled for Result<Settled, E> {
    fn into_settled(self) -> Result<Settled, Verdict> {
        self.map_err(|error| failed(&error))
    }
}

fn failed(error: &impl Display) -> Verdict {
    Verdict::Retry {
        error: Json::error(format_args!("{error:#}")),
        after: leasehold_core::RetryAfter::Backoff,
    }
}
