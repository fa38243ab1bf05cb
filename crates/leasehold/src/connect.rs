//! One URL, any backend.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use leasehold_core::{Store, StoreError};

/// Every scheme, the feature that it needs, and whether this build has it.
const SCHEMES: &[(&[&str], &str, bool)] = &[
    (&["memory"], "memory", cfg!(feature = "memory")),
    (&["sqlite"], "sqlite", cfg!(feature = "sqlite")),
    (&["postgres", "postgresql"], "postgres", cfg!(feature = "postgres")),
    (&["mysql", "mariadb"], "mysql", cfg!(feature = "mysql")),
    (
        &["redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix", "unix"],
        "redis",
        cfg!(feature = "redis"),
    ),
];

/// Why there is no store. Shown by `{:?}`, as by a `main` that returns it, it is the same words with all their causes.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text does not begin with a scheme. It is not shown: it may be a connection string with a password.
    #[error("no scheme: a URL begins with {known}")]
    NoScheme {
        /// What it could begin with.
        known: String,
    },
    /// The URL begins with nothing that is known.
    #[error("no backend for {scheme:?}: a URL begins with {known}")]
    UnknownScheme {
        /// What it begins with.
        scheme: String,
        /// What it could begin with.
        known: String,
    },
    /// The backend was left out of this build.
    #[error("no backend for {scheme}: enable it with `cargo add leasehold --features {feature}`")]
    MissingFeature {
        /// What the URL begins with.
        scheme: String,
        /// The feature of the crate `leasehold` to enable.
        feature: &'static str,
    },
    /// The backend cannot be reached, or refuses.
    #[error("the store cannot be opened{}", advice(.0))]
    Store(#[from] StoreError),
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Drivers like to say what their own causes will say again.
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            cause = error.source();
        }
        f.write_str(&words)
    }
}

fn advice(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => " (is the server running, and is the URL right?)",
        _ => "",
    }
}

/// Connects to the store at `url`, and makes its tables if they are not there yet.
///
/// | URL | feature | what |
/// | --- | --- | --- |
/// | `memory:` | `memory` | jobs that die with the process |
/// | `sqlite://jobs.db`, `sqlite::memory:` | `sqlite` | a file, with SQLite built in: nothing to install |
/// | `postgres://user@host/database` | `postgres` | Postgres 13 and newer, in the schema `leasehold` |
/// | `mysql://user@host/database`, `mariadb://…` | `mysql` | MySQL 8.0.16 and newer, MariaDB 10.6 and newer |
/// | `redis://user:password@host/0`, `valkey://…` | `redis` | Redis 7 and Valkey, with keys that begin with `{leasehold`; no transactions |
/// | `rediss://…`, `valkeys://…` | `redis` | the same, by TLS |
/// | `redis+unix:///path?db=0&user=…&pass=…`, `valkey+unix:…`, `unix:…` | `redis` | the same, by a socket of this machine |
///
/// A scheme may be written in capitals, and space around the URL is ignored. No error shows more of the URL than its scheme, host, port, user
/// and database, and the path of a file.
///
/// For settings, and for transactions, make the store of the backend itself: `leasehold::postgres::PgStore`, for example. It
/// coerces to the same `Arc<dyn Store>`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "memory")] {
/// let store = leasehold::connect("memory:").await?;
/// assert!(store.capabilities().transactions);
/// # }
///
/// let error = leasehold::connect("mongodb://localhost").await.unwrap_err();
/// assert!(error.to_string().contains("mongodb"));
/// # Ok(()) }
/// ```
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(url: &str) -> Result<Arc<dyn Store>, ConnectError> {
    let url = url.trim();
    let scheme = scheme(url).ok_or_else(|| ConnectError::NoScheme { known: known() })?;
    let rest = &url[scheme.len()..];
    let scheme = scheme.to_ascii_lowercase();
    match SCHEMES.iter().find(|(schemes, ..)| schemes.contains(&scheme.as_str())) {
        None => Err(ConnectError::UnknownScheme { scheme, known: known() }),
        Some((_, feature, false)) => Err(ConnectError::MissingFeature { scheme, feature }),
        Some((_, feature, true)) => Ok(open(feature, &format!("{scheme}{rest}")).await?),
    }
}

/// What stands before `://`, or letters before a colon. Before a colon alone other characters may be a password or a host.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let is_letters = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let is_url = rest.starts_with("//") && scheme.bytes().all(is_scheme);
    let begins_well = scheme.starts_with(|first: char| first.is_ascii_alphabetic());
    (begins_well && (is_url || is_letters(scheme))).then_some(scheme)
}

#[allow(unused_variables, reason = "without any backend there is nothing to open")]
async fn open(feature: &str, url: &str) -> Result<Arc<dyn Store>, StoreError> {
    match feature {
        #[cfg(feature = "memory")]
        "memory" => Ok(Arc::new(leasehold_memory::MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let store = leasehold_sqlite::SqliteStore::connect(url).await?;
            store.migrate().await?;
            Ok(Arc::new(store))
        }
        #[cfg(feature = "postgres")]
        "postgres" => {
            let store = leasehold_postgres::PgStore::connect(url).await?;
            store.migrate().await?;
            Ok(Arc::new(store))
        }
        #[cfg(feature = "mysql")]
        "mysql" => {
            let store = leasehold_mysql::MysqlStore::connect(url).await?;
            store.migrate().await?;
            Ok(Arc::new(store))
        }
        #[cfg(feature = "redis")]
        "redis" => Ok(Arc::new(leasehold_redis::RedisStore::connect(url).await?)),
        _ => Err(StoreError::unsupported("any URL: no backend is enabled")),
    }
}

fn known() -> String {
    let schemes = SCHEMES.iter().flat_map(|(schemes, ..)| schemes.iter());
    schemes.map(|scheme| format!("`{scheme}:`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests;
