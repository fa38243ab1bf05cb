//! Making the tables, and bringing those of an older version up to date.

use diesel::sql_types::Integer;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::StoreError;

use crate::error::{Effect, Failure};
use crate::schema::Schema;
use crate::sql::{FUNCTIONS, put_in};

/// Every migration, in order: a text, and the functions to be made then. One that was released is never changed.
const MIGRATIONS: &[(i32, &str, &str, &[&str])] =
    &[(1, "queue", include_str!("../migrations/0001_queue.sql"), FUNCTIONS)];

/// The version that this program knows.
const VERSION: i32 = 1;

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
    if before.contains(&VERSION) {
        return Ok(check(&before, schema)); // Who may not make tables can still say that they are there.
    }
    conn.batch_execute(&put_in(schema, &opening(schema))).await?;
    let applied = applied(conn, schema).await?;
    if let Err(error) = check(&applied, schema) {
        conn.batch_execute("ROLLBACK").await?;
        return Ok(Err(error));
    }
    for (version, name, text, functions) in
        MIGRATIONS.iter().filter(|(version, ..)| !applied.contains(version))
    {
        conn.batch_execute(&put_in(schema, &format!("{text}{}", functions.concat()))).await?;
        conn.batch_execute(&put_in(schema, &entry(*version, name))).await?;
        tracing::info!(%schema, version, name, "migrated");
    }
    conn.batch_execute("COMMIT").await?;
    Ok(Ok(()))
}

/// Refuses a schema that a newer version has made, or that was never made.
pub(crate) async fn check_version(conn: &mut AsyncPgConnection, schema: &Schema) -> Result<(), StoreError> {
    let applied = applied(conn, schema).await.map_err(|failure| failure.told("connect", Effect::Read));
    check(&applied?, schema)
}

/// All migrations as one script, for those who run their own.
pub(crate) fn script(schema: &Schema) -> String {
    let mut script = put_in(schema, &opening(schema));
    for (version, name, text, functions) in MIGRATIONS {
        script.push_str(&put_in(schema, &format!("{text}{}", functions.concat())));
        script.push_str(&put_in(schema, &entry(*version, name)));
    }
    script.push_str("COMMIT;\n");
    script
}

fn check(applied: &[i32], schema: &Schema) -> Result<(), StoreError> {
    match applied.iter().max() {
        Some(found) if *found > VERSION => Err(StoreError::conflict(format!(
            "schema {schema} is of version {found}, and this program knows {VERSION}: use a newer leasehold-postgres"
        ))),
        _ => Ok(()),
    }
}

fn opening(schema: &Schema) -> String {
    let lock = schema.number() as i64;
    format!(
        "BEGIN;
SELECT pg_advisory_xact_lock({lock});
CREATE SCHEMA IF NOT EXISTS {{schema}};
CREATE TABLE IF NOT EXISTS {{schema}}.job_migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
"
    )
}

fn entry(version: i32, name: &str) -> String {
    format!("INSERT INTO {{schema}}.job_migration (version, name) VALUES ({version}, '{name}');\n")
}

/// The versions that were applied; none if there is no such schema.
async fn applied(conn: &mut AsyncPgConnection, schema: &Schema) -> Result<Vec<i32>, Failure> {
    use crate::statement::Statement;
    let table = put_in(schema, "{schema}.job_migration");
    let exists = "SELECT (to_regclass($1::text) IS NOT NULL)::integer";
    let exists: Vec<i32> = Statement::<Integer>::new(exists, vec![table.as_str().into()]).rows(conn).await?;
    if exists != [1] {
        return Ok(Vec::new());
    }
    let versions = put_in(schema, "SELECT version FROM {schema}.job_migration");
    Statement::<Integer>::new(&versions, Vec::new()).rows(conn).await
}
