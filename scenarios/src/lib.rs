//! What users do with Leasehold, on every backend: thousands of queues in order, by few workers.

mod counted;
mod crew;
mod gate;
mod ground;
mod rooms;

pub use crate::counted::{Counted, Counts};
pub use crate::crew::{Crew, Finding};
pub use crate::gate::Gate;
pub use crate::ground::{Backend, Ground};
pub use crate::rooms::{Message, Span, fifo, fill, in_order};

/// Whatever went wrong.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// What the parts of a scenario answer.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

#[cfg(doctest)]
#[doc = include_str!("../../docs/many-queues.md")]
struct Guide;
