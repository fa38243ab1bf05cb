//! Making the tables, and bringing those of an older version up to date.

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use leasehold_core::StoreError;

use crate::error::Failure;
use crate::session::Session;
use crate::sql::put_in;
use leasehold_sql::TablePrefix;

/// A change of the tables. One that was released is never changed.
struct Migration {
    version: i64,
    name: &'static str,
    /// The version of the oldest program that may work on the tables from then on. A program of an older version refuses them.
    oldest: i64,
    text: &'static str,
}

/// Every migration, in order.
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "queue", oldest: 1, text: include_str!("../migrations/0001_queue.sql") },
    Migration {
        version: 2,
        name: "once keys",
        oldest: 1,
        text: include_str!("../migrations/0002_once_keys.sql"),
    },
    Migration { version: 3, name: "hints", oldest: 1, text: include_str!("../migrations/0003_hints.sql") },
];

/// The version of this program: that of the last migration that it knows.
const VERSION: i64 = 3;

/// The ledger of what was migrated.
const LEDGER: &str = "CREATE TABLE IF NOT EXISTS {prefix}job_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    oldest INTEGER NOT NULL DEFAULT 1
) STRICT;
";

/// The first version kept no `oldest`.
const ADD_OLDEST: &str = "ALTER TABLE {prefix}job_migration ADD COLUMN oldest INTEGER NOT NULL DEFAULT 1;";

/// Migrates, in the writer's transaction: any number of processes may do it at once.
pub(crate) fn migrate(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<(), Failure> {
    let applied = applied(session, prefix)?;
    check(&applied)?;
    session.conn.batch_execute(&put_in(prefix, LEDGER))?;
    if !has_oldest(session, prefix)? {
        session.conn.batch_execute(&put_in(prefix, ADD_OLDEST))?;
    }
    let is_new = |migration: &&Migration| !applied.iter().any(|applied| applied.version == migration.version);
    for migration in MIGRATIONS.iter().filter(is_new) {
        session.conn.batch_execute(&migration.script(prefix))?;
        tracing::info!(%prefix, version = migration.version, name = migration.name, "migrated");
    }
    Ok(())
}

/// Refuses tables for which this program is too old.
pub(crate) fn check_version(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<(), Failure> {
    Ok(check(&applied(session, prefix)?)?)
}

/// All migrations as one script, for those who run their own.
pub(crate) fn script(prefix: &TablePrefix) -> String {
    let mut script = format!("BEGIN IMMEDIATE;\n{}", put_in(prefix, LEDGER));
    MIGRATIONS.iter().for_each(|migration| script.push_str(&migration.script(prefix)));
    script.push_str("COMMIT;\n");
    script
}

impl Migration {
    /// What makes the change, and says in the ledger that it was made.
    fn script(&self, prefix: &TablePrefix) -> String {
        let Self { version, name, oldest, text } = self;
        let entry = format!(
            "INSERT INTO {{prefix}}job_migration (version, name, oldest) VALUES ({version}, '{name}', {oldest});\n"
        );
        put_in(prefix, &format!("{text}{entry}"))
    }
}

/// A migration that was applied, perhaps by a newer program.
struct Applied {
    version: i64,
    oldest: i64,
}

fn check(applied: &[Applied]) -> Result<(), StoreError> {
    match applied.iter().find(|applied| applied.oldest > VERSION) {
        Some(Applied { version, oldest }) => Err(StoreError::conflict(format!(
            "the tables are of version {version} and need a program of version {oldest}, this one is of version \
             {VERSION}: use a newer leasehold-sqlite"
        ))),
        None => Ok(()),
    }
}

/// What was applied; nothing if there are no tables.
fn applied(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<Vec<Applied>, Failure> {
    let table = put_in(prefix, "{prefix}job_migration");
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    if session.row::<BigInt, i64>(exists, vec![table.into()])?.is_none() {
        return Ok(Vec::new());
    }
    let oldest = if has_oldest(session, prefix)? { "oldest" } else { "1" };
    let ledger = format!("SELECT version, {oldest} FROM {{prefix}}job_migration ORDER BY version");
    let rows: Vec<(i64, i64)> = session.rows::<(BigInt, BigInt), _>(&put_in(prefix, &ledger), Vec::new())?;
    Ok(rows.into_iter().map(|(version, oldest)| Applied { version, oldest }).collect())
}

fn has_oldest(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<bool, Failure> {
    let table = put_in(prefix, "{prefix}job_migration");
    let column = "SELECT 1 FROM pragma_table_info(?1) WHERE name = 'oldest'";
    Ok(session.row::<BigInt, i64>(column, vec![table.into()])?.is_some())
}
