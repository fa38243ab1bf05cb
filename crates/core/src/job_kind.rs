//! Jobs whose payload has a type.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type of payload, and the kind of the jobs that carry it.
///
/// ```
/// use leasehold_core::{JobKind, NewJob};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl JobKind for SendMail {
///     const KIND: &'static str = "send_mail";
/// }
///
/// let job = NewJob::of("mail", &SendMail { to: "ada@example.com".to_owned() }).build()?;
/// assert_eq!(job.kind().as_str(), "send_mail");
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the payload of a kind of jobs",
    label = "no `JobKind`",
    note = "derive `Serialize` and `Deserialize` for it, and say `impl JobKind for {Self} {{ const KIND: &'static str = \"…\"; }}`"
)]
pub trait JobKind: Serialize + DeserializeOwned + Send + 'static {
    /// [`Job::kind`](crate::Job::kind) of such jobs: 1 to 128 bytes of printable ASCII. Keep it when the type is renamed:
    /// jobs in the queue have it.
    const KIND: &'static str;
}
