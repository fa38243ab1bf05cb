//! The files of a database: the database itself, its write-ahead log and the index of that.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::sql_types::Text;
use diesel::sqlite::SqliteConnection;
use leasehold_core::StoreError;

use crate::statement::Statement;

/// The file behind the connection, as SQLite names it: an absolute path without links. Empty for a database in memory.
pub(crate) fn file(conn: &mut SqliteConnection) -> String {
    let asked =
        Statement::<Text>::new("SELECT file FROM pragma_database_list WHERE name = 'main'", Vec::new());
    asked.rows::<String>(conn).ok().and_then(|rows| rows.into_iter().next()).unwrap_or_default()
}

/// The file beside `file` whose name has this at its end.
pub(crate) fn beside(file: &str, end: &str) -> PathBuf {
    PathBuf::from(format!("{file}{end}"))
}

/// How old the last look may be by which an operation goes.
const LOOK: Duration = Duration::from_secs(1);

/// The files that a store has open, to see whether they still have their names.
///
/// SQLite goes on writing to a file that was deleted or replaced, and in WAL mode does not notice. Other processes then work on another file, and what this one
/// has accepted is gone as soon as it ends.
pub(crate) struct Files {
    opened: Vec<(PathBuf, Identity)>,
    /// When all was well the last time.
    well: Mutex<Instant>,
}

/// What is the same for two names of one file only: its device and its number there.
type Identity = (u64, u64);

impl Files {
    /// Those of the database that has just been opened. None for one in memory.
    pub(crate) fn opened(file: &str) -> Self {
        let ends: &[&str] = if file.is_empty() { &[] } else { &["", "-wal", "-shm"] };
        let paths = ends.iter().map(|end| beside(file, end));
        let known = paths.filter_map(|path| Some((identity(&path).ok()??, path)));
        Self {
            opened: known.map(|(identity, path)| (path, identity)).collect(),
            well: Mutex::new(Instant::now()),
        }
    }

    /// Refuses to go on if one of them was deleted or replaced. It looks once in a second; once something was wrong, each time.
    pub(crate) fn check(&self) -> Result<(), Moved> {
        let mut well = self.well.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.saturating_duration_since(*well) < LOOK {
            return Ok(());
        }
        self.look()?;
        *well = now;
        Ok(())
    }

    fn look(&self) -> Result<(), Moved> {
        for (path, opened) in &self.opened {
            match identity(path) {
                Ok(Some(found)) if found != *opened => {
                    return Err(Moved { path: path.clone(), what: "is another file" });
                }
                Err(error) if is_gone(&error) => return Err(Moved { path: path.clone(), what: "is gone" }),
                // What cannot be looked at may well be there.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// A file that was deleted or replaced since it was opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} {what} since it was opened, and what is written now would be lost: put the file back that was there, with its -wal and -shm, or stop \
     every program that works on it and connect again"
)]
pub(crate) struct Moved {
    path: PathBuf,
    what: &'static str,
}

impl Moved {
    /// What the caller of an operation is told.
    pub(crate) fn told(self, operation: &'static str) -> StoreError {
        StoreError::unavailable(operation, self)
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// None where the system has no such thing. Elsewhere than on Unix an open file cannot be deleted.
#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<Option<Identity>> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(path)?;
    Ok(Some((file.dev(), file.ino())))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> std::io::Result<Option<Identity>> {
    Ok(None)
}

/// Makes the file, if it is not there, so that only its owner can read it. SQLite gives the log and its index the same mode.
///
/// It is made under another name and closed before it gets its own: closing a file takes away the locks that SQLite has on it.
/// If this fails, SQLite will say why.
#[cfg(unix)]
pub(crate) fn make_private(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let make = |path: &Path| {
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.map(drop)
    };
    let path = target(path);
    if path.exists() {
        return;
    }
    let mut new = path.clone().into_os_string();
    new.push(format!("-new-{}-{:x}", std::process::id(), fastrand::u64(..)));
    let new = PathBuf::from(new);
    if make(&new).is_err() {
        return;
    }
    let linked = std::fs::hard_link(&new, &path);
    drop(std::fs::remove_file(&new));
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => drop(make(&path)), // It knows no links.
        _ => {}
    }
}

#[cfg(not(unix))]
pub(crate) fn make_private(_: &Path) {}

/// Where a link leads, even if there is nothing yet.
#[cfg(unix)]
fn target(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..40 {
        let Ok(next) = std::fs::read_link(&path) else {
            break;
        };
        path = path.parent().map_or_else(|| next.clone(), |folder| folder.join(&next));
    }
    path
}
