//! Batches that are too large for one statement.
//!
//! The server refuses a message of 1 GiB and closes the connection, so such a batch is sent in chunks, each of them a statement. On the
//! store's own connections they are one transaction. In the caller's transaction they are simply several statements.

#[cfg(test)]
mod tests;

use diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};

use crate::error::{self, Failure};

/// How often a transaction that the server has given up on is tried again.
pub(crate) const RACES: u32 = 10;

/// A chunk has so many bytes at most, or one item. A single item is at most a document of this size, its headers and its names.
const BYTES: usize = leasehold_core::limits::JSON_BYTES;

/// How large a chunk may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    bytes: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { bytes: BYTES }
    }
}

impl Chunks {
    #[cfg(test)]
    fn of(bytes: usize) -> Self {
        Self { bytes }
    }

    /// Whether items of these sizes fit into one chunk.
    pub(crate) fn is_one(self, sizes: impl Iterator<Item = usize>) -> bool {
        sizes.sum::<usize>() <= self.bytes
    }

    /// The places in chunks, none of them empty. `size` is that of the item at a place.
    pub(crate) fn split(self, places: &[usize], size: impl Fn(usize) -> usize) -> Vec<&[usize]> {
        let (mut chunks, mut rest) = (Vec::new(), places);
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |place: &&usize| {
                bytes += size(**place);
                bytes <= self.bytes
            };
            let (chunk, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            chunks.push(chunk);
            rest = after;
        }
        chunks
    }
}

/// Begins a transaction of the store's.
pub(crate) async fn begin(conn: &mut AsyncPgConnection) -> Result<(), Failure> {
    match AnsiTransactionManager::begin_transaction(conn).await {
        Ok(()) => Ok(()),
        Err(error) => Err(error::of_statement(conn, error).await.before_commit()),
    }
}

/// Ends it: commits if all of its statements were done, and undoes them otherwise. Only of a connection that is lost during COMMIT it is
/// unknown what was done.
pub(crate) async fn end<T>(conn: &mut AsyncPgConnection, done: Result<T, Failure>) -> Result<T, Failure> {
    match done {
        Ok(answer) => match AnsiTransactionManager::commit_transaction(conn).await {
            Ok(()) => Ok(answer),
            Err(error) => Err(error::of_statement(conn, error).await),
        },
        Err(failure) => {
            // If this fails the connection is broken: it takes no other transaction, and the server undoes this one.
            drop(AnsiTransactionManager::rollback_transaction(conn).await);
            Err(failure.before_commit())
        }
    }
}
