//! Where the database is, and how a connection to it is set up.

use std::path::Path;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::sql_types::Text;
use diesel::sqlite::SqliteConnection;
use diesel::{Connection, ConnectionError};
use leasehold_core::{Invalid, Problem, StoreError};
use percent_encoding::percent_decode_str;

use crate::error::Failure;
use crate::files::make_private;
use crate::statement::Statement;

/// When a commit is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Before anybody is told of it: what was accepted survives the loss of power.
    #[default]
    Full,
    /// Some time later: what was accepted survives a crash of the process, but the last moments before a loss of power may
    /// be lost. The database stays whole.
    Normal,
}

impl Synchronous {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    File(String),
}

impl Place {
    /// Reads `sqlite://jobs.db`, `sqlite:jobs.db`, `sqlite::memory:`, `:memory:` or a path.
    pub(crate) fn parse(url: &str) -> Result<Self, Invalid> {
        let path = match url.strip_prefix("sqlite:") {
            Some(rest) => {
                let rest = rest.strip_prefix("//").unwrap_or(rest);
                if rest.contains(['?', '#']) {
                    return Err(malformed("no parameters: the builder has the settings"));
                }
                percent_decode_str(rest).decode_utf8().map_err(|_| malformed("a path in UTF-8"))?.into_owned()
            }
            None if url.contains("://") || url.starts_with("file:") => {
                return Err(malformed("a path or a URL that begins with sqlite:"));
            }
            None => url.to_owned(),
        };
        match path.as_str() {
            "" => Err(Invalid::new("url", Problem::Empty)),
            ":memory:" => Ok(Self::Memory),
            path if path.contains('\0') => Err(malformed("a path without NUL")),
            // SQLite would take these for URLs of its own.
            path if path.starts_with("file:") || path.starts_with("sqlite:") => {
                Ok(Self::File(format!("./{path}")))
            }
            _ => Ok(Self::File(path)),
        }
    }
}

impl Place {
    /// The same file, even if the process changes its directory later.
    pub(crate) fn absolute(self) -> Result<Self, Invalid> {
        let Self::File(path) = self else {
            return Ok(self);
        };
        let absolute =
            std::path::absolute(&path).map_err(|_| malformed("a path that can be made absolute"))?;
        let absolute = absolute.into_os_string().into_string();
        absolute
            .map(Self::File)
            .map_err(|_| malformed("a path in UTF-8, that of the current directory included"))
    }
}

fn malformed(expected: &'static str) -> Invalid {
    Invalid::new("url", Problem::Malformed { expected })
}

/// How connections are made.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    pub(crate) place: Place,
    pub(crate) synchronous: Synchronous,
    pub(crate) busy_timeout: Duration,
}

impl Connector {
    /// The writer's own: it asks for the lock itself, again and again, and never waits inside of SQLite.
    pub(crate) fn writer(&self) -> Result<SqliteConnection, StoreError> {
        let mut conn = self.user()?;
        self.warn_of_old_sqlite(&mut conn);
        // Room for the inner pages of every index, and for what a group changes: 16 MiB.
        say(&mut conn, "PRAGMA busy_timeout = 0; PRAGMA cache_size = -16384")?;
        Ok(conn)
    }

    /// One that only reads.
    pub(crate) fn reader(&self) -> Result<SqliteConnection, StoreError> {
        let mut conn = self.user()?;
        say(&mut conn, "PRAGMA query_only = ON")?;
        Ok(conn)
    }

    /// One for transactions of the user's.
    pub(crate) fn user(&self) -> Result<SqliteConnection, StoreError> {
        let path = match &self.place {
            Place::Memory => ":memory:",
            Place::File(path) => {
                make_private(Path::new(path));
                path
            }
        };
        let mut conn = SqliteConnection::establish(path).map_err(|error| unopened(path, &error))?;
        let busy = i32::try_from(self.busy_timeout.as_millis()).unwrap_or(i32::MAX);
        say(&mut conn, &format!("PRAGMA busy_timeout = {busy}"))?;
        if self.place != Place::Memory {
            self.write_ahead(&mut conn)?;
        }
        // A journal that grew in a burst is cut back to this.
        let settings = "PRAGMA journal_size_limit = 67108864; PRAGMA temp_store = MEMORY";
        say(&mut conn, &format!("PRAGMA synchronous = {}; {settings}", self.synchronous.as_str()))?;
        Ok(conn)
    }

    /// SQLite before 3.51.3 can, in very rare cases, corrupt a database with a write-ahead log that several connections write
    /// to (<https://sqlite.org/wal.html#the_wal_reset_bug>). Which SQLite is built in is for the program's lock file to say.
    fn warn_of_old_sqlite(&self, conn: &mut SqliteConnection) {
        let versions = Statement::<Text>::new("SELECT sqlite_version()", Vec::new()).rows::<String>(conn);
        let version = versions.ok().and_then(|versions| versions.into_iter().next()).unwrap_or_default();
        if self.place != Place::Memory && has_reset_bug(&version) {
            tracing::warn!(
                version,
                "this SQLite can corrupt a write-ahead log; use libsqlite3-sys 0.38 or newer"
            );
        }
    }

    /// Sees that the database has a write-ahead log. Whoever is first to make it so needs the database alone for a moment,
    /// and SQLite does not wait for that by itself.
    fn write_ahead(&self, conn: &mut SqliteConnection) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.busy_timeout;
        loop {
            let modes: Result<Vec<String>, Failure> =
                Statement::<Text>::new("PRAGMA journal_mode = WAL", Vec::new()).rows(conn);
            match modes {
                Ok(modes) if modes == ["wal"] => return Ok(()),
                Ok(modes) => {
                    let words = format!("the database cannot have a write-ahead log, only {modes:?}");
                    return Err(StoreError::backend("connect", words));
                }
                Err(failure) if failure.is_busy() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1 + fastrand::u64(..5)));
                }
                Err(failure) if failure.is_busy() => return Err(failure.told("connect")),
                Err(failure) => return Err(StoreError::backend("connect", self.unfit(&failure))),
            }
        }
    }

    /// What is wrong with the file.
    fn unfit(&self, failure: &Failure) -> String {
        match &self.place {
            Place::Memory => failure.words(),
            Place::File(path) => format!("{path}: {}", failure.words()),
        }
    }
}

/// Whether this version has the WAL-reset bug, which 3.51.3 has mended, and 3.50.7 before it.
fn has_reset_bug(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let parts: [u32; 3] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    parts < [3, 51, 3] && !([3, 50, 7]..[3, 51, 0]).contains(&parts)
}

fn say(conn: &mut SqliteConnection, text: &str) -> Result<(), StoreError> {
    conn.batch_execute(text).map_err(|error| Failure::from(error).told("connect"))
}

/// SQLite says no more than that it cannot open a file. What can be seen from here is said, too.
fn unopened(path: &str, error: &ConnectionError) -> StoreError {
    let file = Path::new(path);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let advice = if file.is_dir() {
        "it is a directory; name a file in it"
    } else if folder.is_some_and(|folder| !folder.is_dir()) {
        "its directory does not exist; make that first"
    } else {
        "may this user read and write it, and make files beside it?"
    };
    StoreError::backend("connect", format!("{error} {path}: {advice}"))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::time::Duration;

    use super::{Connector, Place, Synchronous, has_reset_bug};

    #[test]
    fn a_file_that_cannot_be_opened_says_what_to_do() {
        let text_file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/connect.rs");
        for (path, advice) in [
            (
                "/no/such/directory/jobs.db",
                "/no/such/directory/jobs.db: its directory does not exist; make that first",
            ),
            (env!("CARGO_MANIFEST_DIR"), "it is a directory; name a file in it"),
            (text_file, "connect.rs: file is not a database"),
        ] {
            let place = Place::File(path.to_owned());
            let connector = Connector { place, synchronous: Synchronous::Full, busy_timeout: Duration::ZERO };
            let error = connector.user().err();
            let source = error.as_ref().and_then(Error::source).map(ToString::to_string);
            assert!(source.as_ref().is_some_and(|source| source.contains(advice)), "{path}: {source:?}");
        }
    }

    #[test]
    fn an_old_sqlite_is_known_by_its_version() {
        for (version, expected) in [
            ("3.46.0", true),
            ("3.50.6", true),
            ("3.50.7", false),
            ("3.51.2", true),
            ("3.51.3", false),
            ("3.53.0", false),
        ] {
            assert_eq!(has_reset_bug(version), expected, "{version}");
        }
    }

    #[test]
    fn a_url_or_a_path_says_where_the_database_is() {
        for (url, path) in [
            ("jobs.db", "jobs.db"),
            ("/var/lib/jobs.db", "/var/lib/jobs.db"),
            ("sqlite:jobs.db", "jobs.db"),
            ("sqlite://jobs.db", "jobs.db"),
            ("sqlite:///var/lib/my%20jobs.db", "/var/lib/my jobs.db"),
            ("what?.db", "what?.db"),
            ("sqlite:file:x", "./file:x"),
        ] {
            assert_eq!(Place::parse(url), Ok(Place::File(path.to_owned())), "{url}");
        }
        for url in [":memory:", "sqlite::memory:", "sqlite://:memory:"] {
            assert_eq!(Place::parse(url), Ok(Place::Memory), "{url}");
        }
        for url in ["", "sqlite:", "sqlite://", "postgres://x", "sqlite://a?mode=ro", "file:a", "a\0b"] {
            assert_eq!(Place::parse(url).unwrap_err().field, "url", "{url}");
        }
    }
}
