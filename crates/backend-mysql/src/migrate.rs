//! Making the tables, and bringing those of an older version up to date.
//!
//! MySQL commits with every CREATE, so a migration is no transaction: it is done in steps, each of which can be done again, and
//! the ledger remembers each. One that was broken off is taken up where it was left.

use diesel::sql_types::{BigInt, Integer};
use diesel_async::{AsyncMysqlConnection, SimpleAsyncConnection};
use leasehold_core::StoreError;
use leasehold_sql::TablePrefix;

use crate::error::Failure;
use crate::sql::put_in;
use crate::statement::Statement;

/// Every migration, in order. One that was released is never changed.
const MIGRATIONS: &[(i32, &str, &str)] = &[(1, "queue", include_str!("../migrations/0001_queue.sql"))];

/// The version that this program knows.
const VERSION: i32 = 1;

/// For so many seconds a migration waits for another that is under way.
const PATIENCE: u32 = 300;

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS {prefix}job_migration (
    version INT NOT NULL,
    step INT NOT NULL,
    name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (version, step)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
";

/// Migrates under a lock of the server's, so that any number of processes may do it at once. The connection is given up whatever
/// happens, and the lock with it.
pub(crate) async fn migrate(mut conn: AsyncMysqlConnection, prefix: &TablePrefix) -> Result<(), StoreError> {
    migrate_on(&mut conn, prefix).await.map_err(|failure| failure.told_in_doubt("migrate"))
}

async fn migrate_on(conn: &mut AsyncMysqlConnection, prefix: &TablePrefix) -> Result<(), Failure> {
    let before = applied(conn, prefix).await?;
    check(&before)?;
    if is_done(&before) {
        return Ok(()); // Who may not make tables can still say that they are there.
    }
    lock(conn, prefix).await?;
    conn.batch_execute(&put_in(prefix, LEDGER)).await?;
    let applied = applied(conn, prefix).await?;
    check(&applied)?;
    for (version, name, text) in MIGRATIONS {
        for (step, statement) in steps(prefix, text) {
            if applied.contains(&(*version, step)) {
                continue;
            }
            conn.batch_execute(&statement).await?;
            conn.batch_execute(&put_in(prefix, &entry(*version, step, name))).await?;
        }
        tracing::info!(%prefix, version, name, "migrated");
    }
    Ok(())
}

/// The name is of the database and the prefix; of long ones only a sum has room.
async fn lock(conn: &mut AsyncMysqlConnection, prefix: &TablePrefix) -> Result<(), Failure> {
    let text = "SELECT COALESCE(GET_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(DATABASE(), ':', ?), 256), 40)), ?), 0)";
    let params = vec![prefix.as_str().into(), PATIENCE.into()];
    let got: Vec<i64> = Statement::<BigInt>::new(text, params).rows(conn).await?;
    if got == [1] {
        return Ok(());
    }
    Err(Failure::Again("another migration is under way and does not end".into()))
}

/// Refuses tables that a newer version has made.
pub(crate) async fn check_version(
    conn: &mut AsyncMysqlConnection,
    prefix: &TablePrefix,
) -> Result<(), Failure> {
    check(&applied(conn, prefix).await?)
}

/// All migrations as one script, for those who run their own.
pub(crate) fn script(prefix: &TablePrefix) -> String {
    let mut script = put_in(prefix, LEDGER);
    script.push('\n');
    for (version, name, text) in MIGRATIONS {
        for (step, statement) in steps(prefix, text) {
            script.push_str(&statement);
            script.push_str(";\n");
            script.push_str(&put_in(prefix, &entry(*version, step, name)));
            script.push('\n');
        }
    }
    script
}

/// The statements of a migration, each with its number.
fn steps(prefix: &TablePrefix, text: &str) -> Vec<(i32, String)> {
    let text = put_in(prefix, text);
    let statements = text.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    (1..).zip(statements.map(str::to_owned)).collect()
}

fn check(applied: &[(i32, i32)]) -> Result<(), Failure> {
    match applied.iter().map(|(version, _)| version).max() {
        Some(found) if *found > VERSION => Err(StoreError::conflict(format!(
            "the tables are of version {found}, and this program knows {VERSION}: use a newer leasehold-mysql"
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Whether every step was applied.
fn is_done(applied: &[(i32, i32)]) -> bool {
    let all = MIGRATIONS.iter().flat_map(|(version, _, text)| {
        steps(&TablePrefix::default(), text).into_iter().map(|(step, _)| (*version, step))
    });
    all.into_iter().all(|step| applied.contains(&step))
}

fn entry(version: i32, step: i32, name: &str) -> String {
    format!(
        "INSERT IGNORE INTO {{prefix}}job_migration (version, step, name, applied_at)
VALUES ({version}, {step}, '{name}', UTC_TIMESTAMP(6));\n"
    )
}

/// The steps that were applied; none if there are no tables.
async fn applied(conn: &mut AsyncMysqlConnection, prefix: &TablePrefix) -> Result<Vec<(i32, i32)>, Failure> {
    let table = put_in(prefix, "{prefix}job_migration");
    let exists =
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    let exists: Vec<i64> = Statement::<BigInt>::new(exists, vec![table.into()]).rows(conn).await?;
    if exists != [1] {
        return Ok(Vec::new());
    }
    let steps = put_in(prefix, "SELECT version, step FROM {prefix}job_migration");
    Statement::<(Integer, Integer)>::new(&steps, Vec::new()).rows(conn).await
}
