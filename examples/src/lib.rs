//! Programs that show Leasehold at work, one idea each: `cargo run --example quickstart`. The library itself is empty.
