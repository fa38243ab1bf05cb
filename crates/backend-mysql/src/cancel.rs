//! Ending a statement on the server when its caller is gone.

use std::time::Duration;

use diesel::connection::{Instrumentation, InstrumentationEvent, get_default_instrumentation};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};

use crate::connect::Connector;
use crate::packet::Packet;

/// For so long a statement may take to be ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's number of a connection, and how much it may send at once. They are kept where diesel has room for something of ours, and what diesel tells there is
/// handed on.
struct Numbered {
    number: u32,
    packet: Packet,
    inner: Option<Box<dyn Instrumentation>>,
}

impl Instrumentation for Numbered {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if let Some(inner) = &mut self.inner {
            inner.on_connection_event(event);
        }
    }
}

/// Remembers the server's number of a connection, and how much it may send at once.
pub(crate) fn remember(conn: &mut AsyncMysqlConnection, number: u32, packet: Packet) {
    conn.set_instrumentation(Numbered { number, packet, inner: get_default_instrumentation() });
}

/// The server's number of a connection that the store has opened.
pub(crate) fn number(conn: &mut AsyncMysqlConnection) -> Option<u32> {
    conn.instrumentation().downcast_ref::<Numbered>().map(|numbered| numbered.number)
}

/// How much a connection that the store has opened may send at once.
pub(crate) fn packet(conn: &mut AsyncMysqlConnection) -> Option<Packet> {
    conn.instrumentation().downcast_ref::<Numbered>().map(|numbered| numbered.packet)
}

/// Ends the statement that is running on a connection, by another. If there is none, nothing happens, or the next one ends:
/// the connection must not be used for anything else afterwards.
pub(crate) async fn kill(connector: &Connector, number: u32, operation: &'static str) {
    let killing = async {
        let mut beside = connector.open().await.map_err(|error| error.to_string())?;
        beside.batch_execute(&format!("KILL QUERY {number}")).await.map_err(|error| error.to_string())
    };
    match tokio::time::timeout(PATIENCE, killing).await {
        Ok(Ok(())) => tracing::debug!(operation, "the future was dropped and its statement ended"),
        Ok(Err(error)) => tracing::warn!(operation, error, "a statement could not be ended"),
        Err(_) => tracing::warn!(operation, "a statement could not be ended: no answer from the server"),
    }
}
