//! The language in which the server words its errors.
//!
//! diesel-async keeps the SQLSTATE of a few errors only. A deadlock, a timeout or a missing table is known by its English words, so the
//! store sets `lc_messages` on its own sessions ([`SETTINGS`](crate::connect::SETTINGS)). That takes a superuser, or a role that was allowed to.

use diesel::sql_types::Text;
use diesel_async::AsyncPgConnection;

use crate::error::Failure;
use crate::statement::Statement;

/// A description that the server translates. That `lc_messages` names another language does not mean that the server has its translations.
const ASK: &str = "SELECT pg_catalog.pg_describe_object('pg_catalog.pg_class'::pg_catalog.regclass, \
                   'pg_catalog.pg_class'::pg_catalog.regclass, 0), \
                   pg_catalog.current_setting('lc_messages'), session_user::text";
const ENGLISH: &str = "table pg_class";

/// Warns if the words on this session are not English.
pub(crate) async fn check(conn: &mut AsyncPgConnection) {
    let answer: Result<Vec<(String, String, String)>, Failure> =
        Statement::<(Text, Text, Text)>::planned_anew(ASK, Vec::new()).rows(conn).await;
    match answer {
        Ok(rows) => rows
            .iter()
            .filter(|(words, ..)| words != ENGLISH)
            .for_each(|(_, language, role)| warn(language, role)),
        Err(failure) => {
            tracing::debug!(?failure, "it is not known in which language the server words its errors");
        }
    }
}

fn warn(lc_messages: &str, role: &str) {
    let role = role.replace('"', "\"\"");
    tracing::warn!(
        lc_messages,
        "the server's messages to this role are not in English: deadlocks, timeouts and cancelled statements are errors of the kind Backend, \
         which are not retried, instead of Unavailable. As a superuser, run \
         ALTER ROLE \"{role}\" SET lc_messages = 'C', or from Postgres 15 on GRANT SET ON PARAMETER lc_messages TO \"{role}\""
    );
}
