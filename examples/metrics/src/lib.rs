//! The metrics of a worker, as Prometheus reads them: `cargo run --example metrics`. The library itself is empty.
