//! Against private servers, one for each test.

mod encryption;
mod pooling;
mod secrecy;
mod server;
mod sessions;
mod strings;

use diesel::sql_types::Text;
use diesel_async::{AsyncPgConnection, RunQueryDsl};

/// The value of an expression of type text.
async fn ask(connection: &mut AsyncPgConnection, expression: &str) -> String {
    diesel::select(diesel::dsl::sql::<Text>(expression)).get_result(connection).await.unwrap()
}
