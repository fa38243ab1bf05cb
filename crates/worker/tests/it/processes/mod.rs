//! Workers as processes of their own, on a real Postgres: killed, stopped, told to end, starved and cut off.
//!
//! The processes are this very program, started again with [`child::ORDERS`] in their environment.

mod child;
mod crashes;
mod dying;
mod factory;
mod hogs;
mod isolation;
mod log;
mod outage;
mod signals;
