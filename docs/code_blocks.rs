//! The code blocks of the documents become doctests here, so that what they show compiles and runs.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("writing-a-backend.md")]
struct WritingABackend;
