//! Making the tables, and bringing those of an older version up to date.
//!
//! MySQL commits with every CREATE, so a migration is no transaction: it is done in steps, each of which can be done again, and
//! the ledger remembers each. One that was broken off is taken up where it was left.

use diesel::sql_types::{BigInt, Integer};
use diesel_async::AsyncMysqlConnection;
use leasehold_core::StoreError;
use leasehold_sql::TablePrefix;

use crate::connect::PATIENT;
use crate::error::Failure;
use crate::sql::put_in;
use crate::statement::{Statement, say};

/// A change of the tables. One that was released is never changed.
struct Migration {
    version: i32,
    name: &'static str,
    /// The version of the oldest program that may work on the tables from then on. A program of an older version refuses them.
    oldest: i32,
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
    Migration {
        version: 3,
        name: "limit_version",
        oldest: 1,
        text: include_str!("../migrations/0003_limit_version.sql"),
    },
    Migration {
        version: 4,
        name: "unique keys",
        oldest: 4,
        text: include_str!("../migrations/0004_unique_keys.sql"),
    },
];

/// The version of this program: that of the last migration that it knows.
const VERSION: i32 = 4;

/// For so many seconds a migration waits for another that is under way.
const PATIENCE: u32 = 300;

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS {prefix}job_migration (
    version INT NOT NULL,
    step INT NOT NULL,
    name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    oldest INT NOT NULL DEFAULT 1,
    PRIMARY KEY (version, step)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
";

/// The first version kept no `oldest`.
const ADD_OLDEST: &str = "ALTER TABLE {prefix}job_migration ADD COLUMN oldest INT NOT NULL DEFAULT 1";

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
    say(conn, PATIENT).await?;
    lock(conn, prefix).await?;
    say(conn, &put_in(prefix, LEDGER)).await?;
    if columns(conn, prefix).await? == Columns::WithoutOldest {
        say(conn, &put_in(prefix, ADD_OLDEST)).await?;
    }
    let applied = applied(conn, prefix).await?;
    check(&applied)?;
    for migration in MIGRATIONS {
        for (step, statement) in steps(prefix, migration.text) {
            if has(&applied, migration.version, step) {
                continue;
            }
            if !is_there(conn, &statement).await? {
                say(conn, &statement).await?;
            }
            say(conn, &migration.entry(prefix, step)).await?;
        }
        tracing::info!(%prefix, version = migration.version, name = migration.name, "migrated");
    }
    Ok(())
}

/// Whether a statement has been run already, before the ledger knew of it: MySQL has no `ADD COLUMN IF NOT EXISTS` and no `DROP INDEX IF EXISTS`.
async fn is_there(conn: &mut AsyncMysqlConnection, statement: &str) -> Result<bool, Failure> {
    let words: Vec<&str> = statement.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
    let (text, table, name) = match words[..] {
        ["ALTER", "TABLE", table, "ADD", "COLUMN", column, ..] => (
            "SELECT COUNT(*) > 0 FROM information_schema.columns
             WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?",
            table,
            column,
        ),
        ["ALTER", "TABLE", table, "ADD", "CONSTRAINT", constraint, ..] => (
            "SELECT COUNT(*) > 0 FROM information_schema.table_constraints
             WHERE table_schema = DATABASE() AND table_name = ? AND constraint_name = ?",
            table,
            constraint,
        ),
        ["ALTER", "TABLE", table, "DROP", "INDEX", index] => (
            "SELECT COUNT(*) = 0 FROM information_schema.statistics
             WHERE table_schema = DATABASE() AND table_name = ? AND index_name = ?",
            table,
            index,
        ),
        _ => return Ok(false),
    };
    let params = vec![table.into(), name.into()];
    let found: Vec<i64> = Statement::<BigInt>::new(text, params).rows(conn).await?;
    Ok(found == [1])
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

/// Refuses tables for which this program is too old.
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
    for migration in MIGRATIONS {
        for (step, statement) in steps(prefix, migration.text) {
            script.push_str(&statement);
            script.push_str(";\n");
            script.push_str(&migration.entry(prefix, step));
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

impl Migration {
    /// What says in the ledger that a step was done.
    fn entry(&self, prefix: &TablePrefix, step: i32) -> String {
        let Self { version, name, oldest, .. } = self;
        let entry = format!(
            "INSERT IGNORE INTO {{prefix}}job_migration (version, step, name, applied_at, oldest)
VALUES ({version}, {step}, '{name}', UTC_TIMESTAMP(6), {oldest});\n"
        );
        put_in(prefix, &entry)
    }
}

/// A step that was done, perhaps by a newer program.
struct Applied {
    version: i32,
    step: i32,
    oldest: i32,
}

fn has(applied: &[Applied], version: i32, step: i32) -> bool {
    applied.iter().any(|applied| (applied.version, applied.step) == (version, step))
}

fn check(applied: &[Applied]) -> Result<(), Failure> {
    match applied.iter().find(|applied| applied.oldest > VERSION) {
        Some(Applied { version, oldest, .. }) => Err(StoreError::conflict(format!(
            "the tables are of version {version} and need a program of version {oldest}, this one is of version \
             {VERSION}: use a newer leasehold-mysql"
        ))
        .into()),
        None => Ok(()),
    }
}

/// Whether every step was applied.
fn is_done(applied: &[Applied]) -> bool {
    let all = MIGRATIONS.iter().flat_map(|migration| {
        let steps = steps(&TablePrefix::default(), migration.text);
        steps.into_iter().map(|(step, _)| (migration.version, step))
    });
    all.into_iter().all(|(version, step)| has(applied, version, step))
}

/// What the ledger keeps.
#[derive(Debug, PartialEq, Eq)]
enum Columns {
    /// There is none.
    Nothing,
    /// It is of the first version.
    WithoutOldest,
    All,
}

async fn columns(conn: &mut AsyncMysqlConnection, prefix: &TablePrefix) -> Result<Columns, Failure> {
    let table = put_in(prefix, "{prefix}job_migration");
    let text = "SELECT COUNT(*) FROM information_schema.columns
                WHERE table_schema = DATABASE() AND table_name = ? AND column_name IN ('version', 'oldest')";
    let found: Vec<i64> = Statement::<BigInt>::new(text, vec![table.into()]).rows(conn).await?;
    Ok(match found[..] {
        [2] => Columns::All,
        [1] => Columns::WithoutOldest,
        _ => Columns::Nothing,
    })
}

/// The steps that were applied; none if there are no tables.
async fn applied(conn: &mut AsyncMysqlConnection, prefix: &TablePrefix) -> Result<Vec<Applied>, Failure> {
    let text = match columns(conn, prefix).await? {
        Columns::Nothing => return Ok(Vec::new()),
        Columns::WithoutOldest => "SELECT version, step, 1 FROM {prefix}job_migration ORDER BY version, step",
        Columns::All => "SELECT version, step, oldest FROM {prefix}job_migration ORDER BY version, step",
    };
    let text = put_in(prefix, text);
    let rows: Vec<(i32, i32, i32)> =
        Statement::<(Integer, Integer, Integer)>::new(&text, Vec::new()).rows(conn).await?;
    Ok(rows.into_iter().map(|(version, step, oldest)| Applied { version, step, oldest }).collect())
}
