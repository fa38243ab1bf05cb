//! The files of a database.

use std::path::PathBuf;

use diesel::sql_types::Text;
use diesel::sqlite::SqliteConnection;

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
