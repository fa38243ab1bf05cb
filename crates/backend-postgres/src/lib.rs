//! The Postgres backend of Leasehold.
