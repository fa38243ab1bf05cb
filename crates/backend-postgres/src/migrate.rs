//! Making the tables, and bringing those of an older version up to date.

use diesel::sql_types::Integer;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::StoreError;

use crate::error::{Effect, Failure};
use crate::schema::Schema;
use crate::sql::{ENQUEUE_MANY_QUEUES, FIRST, PREFIXES, REDRIVE, SECOND, THIRD, put_in};
use crate::statement::Statement;

/// A change of the schema: a text, and the functions to be made then. One that was released is never changed.
struct Migration {
    version: i32,
    name: &'static str,
    /// The version of the oldest program that may work on the schema from then on. A program of an older version refuses it.
    oldest: i32,
    text: &'static str,
    functions: &'static [&'static str],
}

/// Every migration, in order.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "queue",
        oldest: 1,
        text: include_str!("../migrations/0001_queue.sql"),
        functions: FIRST,
    },
    Migration {
        version: 2,
        name: "settle without waiting",
        oldest: 1,
        text: include_str!("../migrations/0002_settle_without_waiting.sql"),
        functions: SECOND,
    },
    Migration {
        version: 3,
        name: "claims that miss nothing",
        oldest: 1,
        text: include_str!("../migrations/0003_claims_that_miss_nothing.sql"),
        functions: THIRD,
    },
    Migration {
        version: 4,
        name: "redrive",
        oldest: 1,
        text: include_str!("../migrations/0004_redrive.sql"),
        functions: REDRIVE,
    },
    Migration {
        version: 5,
        name: "enqueue many queues",
        oldest: 1,
        text: include_str!("../migrations/0005_enqueue_many_queues.sql"),
        functions: ENQUEUE_MANY_QUEUES,
    },
    Migration {
        version: 6,
        name: "search path and prefixes",
        oldest: 1,
        text: include_str!("../migrations/0006_search_path_and_prefixes.sql"),
        functions: PREFIXES,
    },
    Migration {
        version: 7,
        name: "once keys",
        oldest: 1,
        text: include_str!("../migrations/0007_once_keys.sql"),
        functions: &[],
    },
];

/// The version of this program: that of the last migration that it knows.
const VERSION: i32 = 7;

/// Migrates in one transaction under a lock, so that any number of processes may do it at once. The connection is given up
/// whatever happens: a future that is dropped halfway leaves nothing open.
pub(crate) async fn migrate(mut conn: AsyncPgConnection, schema: &Schema) -> Result<(), StoreError> {
    let migrated = migrate_on(&mut conn, schema).await;
    migrated.map_err(|failure| failure.told("migrate", Effect::Write))?
}

async fn migrate_on(
    conn: &mut AsyncPgConnection,
    schema: &Schema,
) -> Result<Result<(), StoreError>, Failure> {
    let before = applied(conn, schema).await?;
    if has(&before, VERSION) {
        return Ok(check(&before, schema)); // Who may not make tables can still say that they are there.
    }
    // Another migration may take longer than a statement of the store may wait for a lock.
    conn.batch_execute("SET lock_timeout = 0").await?;
    conn.batch_execute(&put_in(schema, &opening(schema))).await?;
    let applied = applied(conn, schema).await?;
    if let Err(error) = check(&applied, schema) {
        conn.batch_execute("ROLLBACK").await?;
        return Ok(Err(error));
    }
    for migration in MIGRATIONS.iter().filter(|migration| !has(&applied, migration.version)) {
        conn.batch_execute(&migration.script(schema)).await?;
        tracing::info!(%schema, version = migration.version, name = migration.name, "migrated");
    }
    conn.batch_execute("COMMIT").await?;
    Ok(Ok(()))
}

/// Refuses a schema for which this program is too old. One that is not there, or not up to date, is for [`migrate`] to make.
pub(crate) async fn check_version(conn: &mut AsyncPgConnection, schema: &Schema) -> Result<(), StoreError> {
    let applied = applied(conn, schema).await.map_err(|failure| failure.told("connect", Effect::Read));
    check(&applied?, schema)
}

/// All migrations as one script, for those who run their own.
pub(crate) fn script(schema: &Schema) -> String {
    let mut script = put_in(schema, &opening(schema));
    MIGRATIONS.iter().for_each(|migration| script.push_str(&migration.script(schema)));
    script.push_str("COMMIT;\n");
    script
}

impl Migration {
    /// What makes the change, and says in the ledger that it was made.
    fn script(&self, schema: &Schema) -> String {
        let Self { version, name, oldest, text, functions } = self;
        let entry = format!(
            "INSERT INTO {{schema}}.job_migration (version, name, oldest) VALUES ({version}, '{name}', {oldest});\n"
        );
        put_in(schema, &format!("{text}{}{entry}", functions.concat()))
    }
}

/// A migration that was applied, perhaps by a newer program.
#[derive(Debug, Clone, Copy)]
struct Applied {
    version: i32,
    oldest: i32,
}

fn has(applied: &[Applied], version: i32) -> bool {
    applied.iter().any(|applied| applied.version == version)
}

fn check(applied: &[Applied], schema: &Schema) -> Result<(), StoreError> {
    match applied.iter().find(|applied| applied.oldest > VERSION) {
        Some(Applied { version, oldest }) => Err(StoreError::conflict(format!(
            "schema {schema} is of version {version} and needs a program of version {oldest}, this one is of \
             version {VERSION}: use a newer leasehold-postgres"
        ))),
        None => Ok(()),
    }
}

fn opening(schema: &Schema) -> String {
    let lock = schema.number() as i64;
    format!(
        "BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT pg_advisory_xact_lock({lock});
CREATE SCHEMA IF NOT EXISTS {{schema}};
CREATE TABLE IF NOT EXISTS {{schema}}.job_migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
ALTER TABLE {{schema}}.job_migration ADD COLUMN IF NOT EXISTS oldest integer NOT NULL DEFAULT 1;
"
    )
}

/// What was applied; nothing if there is no such schema. The first version kept no `oldest`.
async fn applied(conn: &mut AsyncPgConnection, schema: &Schema) -> Result<Vec<Applied>, Failure> {
    let table = put_in(schema, "{schema}.job_migration");
    let exists = "SELECT (to_regclass($1::text) IS NOT NULL)::integer";
    let exists: Vec<i32> = Statement::<Integer>::new(exists, vec![table.as_str().into()]).rows(conn).await?;
    if exists != [1] {
        return Ok(Vec::new());
    }
    let ledger =
        "SELECT m.version, coalesce((pg_catalog.to_jsonb(m) ->> 'oldest')::integer, 1) FROM {schema}.job_migration m
                  ORDER BY m.version";
    let rows: Vec<(i32, i32)> =
        Statement::<(Integer, Integer)>::new(&put_in(schema, ledger), Vec::new()).rows(conn).await?;
    Ok(rows.into_iter().map(|(version, oldest)| Applied { version, oldest }).collect())
}

#[cfg(test)]
mod tests {
    use super::{MIGRATIONS, VERSION};
    use crate::schema::Schema;
    use crate::sql::put_in;

    #[test]
    fn migrations_are_numbered_and_no_program_is_too_old_for_its_own() {
        for (number, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.version, number, "{}", migration.name);
            assert!(migration.oldest <= migration.version, "{}", migration.name);
        }
        assert_eq!(MIGRATIONS.last().map(|migration| migration.version), Some(VERSION));
    }

    /// What was released is not changed: neither the text nor any function.
    #[test]
    fn version_1_is_what_it_was() {
        let schema = Schema::default();
        let released = put_in(&schema, include_str!("../tests/it/version_1.sql"));
        let first = &MIGRATIONS[0];
        for text in first.functions.iter().chain([&first.text]) {
            assert!(released.contains(&put_in(&schema, text)), "this was changed:\n{text}");
        }
    }
}
