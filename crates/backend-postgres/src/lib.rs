//! The Postgres backend of Leasehold.

#[allow(dead_code, unused_imports)] // Until the store uses it.
mod connect;
mod tls;
