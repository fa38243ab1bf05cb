//! Pages of lists, and bounds of names.

use leasehold_core::{BatchSize, JobId, Page};

/// What is larger than every name that begins with the prefix: names are printable ASCII.
pub fn beyond(prefix: &str) -> String {
    format!("{prefix}\u{7f}")
}

/// What is larger than this name and no larger than the next one, compared byte for byte.
pub fn after(name: &str) -> String {
    format!("{name}\u{1}")
}

/// The page that `rows`, of which one too many was asked for, make. A row that cannot be understood takes its place, so
/// that no page ends before its time.
pub fn page<R, T>(
    mut rows: Vec<R>,
    limit: BatchSize,
    id: impl Fn(&R) -> i64,
    decode: impl Fn(Vec<R>) -> Vec<T>,
) -> Page<T> {
    let more = rows.len() > limit.as_usize();
    rows.truncate(limit.as_usize());
    let next = rows.last().filter(|_| more).map(|last| JobId::new(id(last)));
    Page { items: decode(rows), next }
}
