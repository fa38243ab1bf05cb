//! Ports that are free.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use crate::Error;

/// Below those that the system gives to outgoing connections: while a killed server is down, its port stays free.
const PORTS: Range<u16> = 20_000..32_000;
const TRIES: usize = 200;

/// A port of this machine that nobody listens on at the moment. Whoever takes it must be ready to find it taken.
pub(crate) fn free() -> Result<u16, Error> {
    let mut candidates = std::iter::repeat_with(random).take(TRIES);
    let found = candidates.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    found.ok_or_else(|| Error::new("no free port was found on 127.0.0.1"))
}

/// Not counted up, so that processes that start at the same time seldom want the same.
fn random() -> u16 {
    let many = u64::from(PORTS.end - PORTS.start);
    // The standard library seeds each `RandomState` differently.
    let offset = RandomState::new().build_hasher().finish() % many;
    PORTS.start + u16::try_from(offset).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_taken() {
        let port = free().unwrap();
        assert!(PORTS.contains(&port));
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
