//! Making the tables, and bringing those of an older version up to date.

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use leasehold_core::StoreError;

use crate::error::Failure;
use crate::session::Session;
use crate::sql::put_in;
use leasehold_sql::TablePrefix;

/// Every migration, in order. One that was released is never changed.
const MIGRATIONS: &[(i64, &str, &str)] = &[(1, "queue", include_str!("../migrations/0001_queue.sql"))];

/// The version that this program knows.
const VERSION: i64 = 1;

/// The ledger of what was migrated.
const LEDGER: &str = "CREATE TABLE IF NOT EXISTS {prefix}job_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;
";

/// Migrates, in the writer's transaction: any number of processes may do it at once.
pub(crate) fn migrate(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<(), Failure> {
    let applied = applied(session, prefix)?;
    check(&applied)?;
    session.conn.batch_execute(&put_in(prefix, LEDGER))?;
    for (version, name, text) in MIGRATIONS.iter().filter(|(version, ..)| !applied.contains(version)) {
        session.conn.batch_execute(&put_in(prefix, text))?;
        session.conn.batch_execute(&put_in(prefix, &entry(*version, name)))?;
        tracing::info!(%prefix, version, name, "migrated");
    }
    Ok(())
}

/// Refuses tables that a newer version has made.
pub(crate) fn check_version(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<(), Failure> {
    Ok(check(&applied(session, prefix)?)?)
}

/// All migrations as one script, for those who run their own.
pub(crate) fn script(prefix: &TablePrefix) -> String {
    let mut script = format!("BEGIN IMMEDIATE;\n{}", put_in(prefix, LEDGER));
    for (version, name, text) in MIGRATIONS {
        script.push_str(&put_in(prefix, text));
        script.push_str(&put_in(prefix, &entry(*version, name)));
    }
    script.push_str("COMMIT;\n");
    script
}

fn check(applied: &[i64]) -> Result<(), StoreError> {
    match applied.iter().max() {
        Some(found) if *found > VERSION => Err(StoreError::conflict(format!(
            "the tables are of version {found}, and this program knows {VERSION}: use a newer leasehold-sqlite"
        ))),
        _ => Ok(()),
    }
}

fn entry(version: i64, name: &str) -> String {
    format!("INSERT INTO {{prefix}}job_migration (version, name) VALUES ({version}, '{name}');\n")
}

/// The versions that were applied; none if there are no tables.
fn applied(session: &mut Session<'_>, prefix: &TablePrefix) -> Result<Vec<i64>, Failure> {
    let table = put_in(prefix, "{prefix}job_migration");
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    if session.row::<BigInt, i64>(exists, vec![table.into()])?.is_none() {
        return Ok(Vec::new());
    }
    let versions = put_in(prefix, "SELECT version FROM {prefix}job_migration");
    session.rows::<BigInt, i64>(&versions, Vec::new())
}
