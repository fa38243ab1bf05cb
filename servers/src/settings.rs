//! How a server is set up: here Postgres, beside it in `mysql` the others.

/// For what a server is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settings {
    /// Quick to start and to write: what is committed survives a crash of the server, but not one of the machine.
    Tests,
    /// As the server comes: for benchmarks, where a commit is to cost what it costs.
    Durable,
}

/// Both are to serve many connections.
const ALWAYS: [(&str, &str); 4] = [
    ("listen_addresses", "127.0.0.1"),
    // A path has room for a hundred bytes only, and nobody needs the socket.
    ("unix_socket_directories", ""),
    ("max_connections", "500"),
    ("shared_buffers", "256MB"),
];

/// `synchronous_commit` stays on, or a killed server would forget its last commits. Without `fsync` it costs little.
const TESTS: [(&str, &str); 3] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    // In the data directory, and so gone with it even if the server was killed.
    ("dynamic_shared_memory_type", "mmap"),
];

impl Settings {
    /// Name and value of each, and then of each of `extra`.
    pub(crate) fn and<'a>(self, extra: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let more: &[_] = if self == Self::Tests { &TESTS } else { &[] };
        ALWAYS.iter().chain(more).chain(extra).copied()
    }
}
