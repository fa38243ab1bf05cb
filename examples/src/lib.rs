//! Programs that show Leasehold at work, one idea each: `cargo run --example quickstart`.
//!
//! The library itself is empty. It is where the code blocks of the documents become tests, so that what they show
//! compiles and runs.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/writing-a-backend.md")]
struct WritingABackend;
