//! How the server is reached: by one connection, or by a pool of them.

mod pool;
#[cfg(test)]
mod tests;
mod url;

use std::error::Error as StdError;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::{ConnectionError, ConnectionResult};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::Result;
use tokio_postgres::config::{Config, Host, SslMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) use self::pool::{beside, pool};
use crate::tls::{Handshake, Mode, TlsStream};

type Link = (Client, Connection<Socket, TlsStream>);

/// Plans walk the indexes in order, which is always right for a queue: a queue that has just filled up has no statistics yet, and
/// without them the planner would gather the whole backlog and sort it. A sort that must be looks costly then, which is no
/// reason to compile the plan to machine code: that takes seconds.
///
/// No statement of the store waits for another session's lock without end. Verdicts, heartbeats, claims and reclaims skip locked rows;
/// what has to wait (a unique key, the word of an administrator) gives up after this time, as Unavailable.
///
/// The role or the database may have another default isolation level. The statements are written for READ COMMITTED; at a higher level the
/// server refuses some of those that race (SQLSTATE 40001).
///
/// The words of errors are English, if the role may say so: [`language`](crate::language). If not, it is no reason to fail.
pub(crate) const SETTINGS: &str = "\
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET jit = off; SET lock_timeout = '5s'; \
    SET default_transaction_isolation = 'read committed'; \
    DO $$ BEGIN SET lc_messages = 'C'; EXCEPTION WHEN OTHERS THEN NULL; END $$";
const APPLICATION_NAME: &str = "leasehold";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that only listens sends nothing, so only keepalives show that the server is gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Where the server is and how to reach it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: Arc<Inner>,
    /// What is said first on each connection.
    settings: &'static str,
}

struct Inner {
    config: Config,
    mode: Mode,
    tls: MakeRustlsConnect,
    warned: AtomicBool,
}

impl Connector {
    /// Reads a connection string: a URL or `key=value` pairs, with the options that tokio-postgres knows, and
    ///
    /// * `sslmode`: `disable`, `allow` (taken as `prefer`), `prefer` (the default), `require`, `verify-ca`,
    ///   `verify-full`, each with libpq's meaning;
    /// * `sslrootcert`: the path of a PEM file, or `system`, which is also the default;
    /// * `sslcert` and `sslkey`: the paths of a client certificate and its key.
    ///
    /// The files are read here, once.
    ///
    /// # Errors
    /// [`Invalid`](leasehold_core::StoreError::Invalid), which names the option but never quotes the string.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (mut config, options) = url::parse(url)?;
        let mode = if is_unix(&config) { options.mode().map(|_| Mode::Disable) } else { options.mode() }?;
        let mut client = options.client(mode)?;
        if config.get_ssl_negotiation() == SslNegotiation::Direct {
            mode.check_direct()?;
            client.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        config.ssl_mode(ssl_mode(mode));
        set_defaults(&mut config);
        let (tls, warned) = (MakeRustlsConnect::new(client), AtomicBool::new(false));
        Ok(Self { inner: Arc::new(Inner { config, mode, tls, warned }), settings: "" })
    }

    /// The same server, by connections on which only the store's own statements are run.
    pub(crate) fn tuned(&self) -> Self {
        Self { settings: SETTINGS, ..self.clone() }
    }

    /// One connection for diesel, with the session's settings made. Its traffic is driven by a task on the current
    /// runtime.
    ///
    /// # Errors
    /// [`ConnectionError`], also when the server has not answered within [`Connector::patience`].
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed.
    pub(crate) async fn open(&self) -> ConnectionResult<AsyncPgConnection> {
        let patience = self.patience();
        match tokio::time::timeout(patience, self.open_unbounded()).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(ConnectionError::BadConnection(format!("no answer from the server in {patience:?}")))
            }
        }
    }

    /// How long opening a connection may take in all: `connect_timeout` for each of the hosts.
    pub(crate) fn patience(&self) -> Duration {
        let hosts = u32::try_from(self.inner.config.get_hosts().len()).unwrap_or(u32::MAX);
        let each = self.inner.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        each.saturating_mul(hosts)
    }

    /// Asks the server to end the statement that is running on a connection of this connector's, encrypted as that is.
    pub(crate) async fn cancel(&self, statement: &CancelToken) -> Result<(), tokio_postgres::Error> {
        statement.cancel_query(Handshake::new(self.inner.tls.clone())).await
    }

    async fn open_unbounded(&self) -> ConnectionResult<AsyncPgConnection> {
        let (client, connection) = self.connect().await.map_err(|error| bad_connection(&error))?;
        let mut opened = AsyncPgConnection::try_from_client_and_connection(client, connection).await?;
        if !self.settings.is_empty() {
            let made = opened.batch_execute(self.settings).await;
            made.map_err(ConnectionError::CouldntSetupConfiguration)?;
        }
        Ok(opened)
    }

    async fn connect(&self) -> Result<Link, tokio_postgres::Error> {
        let handshake = Handshake::new(self.inner.tls.clone());
        let link = match self.inner.config.connect(handshake.clone()).await {
            Err(error) if self.falls_back(&handshake, &error) => self.connect_plain(&handshake).await,
            link => link,
        }?;
        if !handshake.is_done() {
            self.warn_of_plaintext(&handshake.host());
        }
        Ok(link)
    }

    async fn connect_plain(&self, handshake: &Handshake) -> Result<Link, tokio_postgres::Error> {
        let mut config = self.inner.config.clone();
        config.ssl_mode(SslMode::Disable).connect(handshake.clone()).await
    }

    /// Under `prefer`, as with libpq, plaintext is tried when TLS fails, and when the server's rules admit the
    /// user only without it. A wrong password is no reason: it would only travel once more, in the open.
    fn falls_back(&self, handshake: &Handshake, error: &tokio_postgres::Error) -> bool {
        let refused = error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        let prefers = self.inner.config.get_ssl_mode() == SslMode::Prefer;
        prefers && (handshake.has_failed() || (handshake.is_done() && refused))
    }

    fn warn_of_plaintext(&self, host: &str) {
        if !is_local(&self.inner.config, host) && !self.inner.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(host, sslmode = %self.inner.mode, "the connection to Postgres is not encrypted");
        }
    }
}

/// Without the password, and without `options`, in which anything may stand.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.inner.config;
        f.debug_struct("Connector")
            .field("hosts", &config.get_hosts())
            .field("ports", &config.get_ports())
            .field("user", &config.get_user())
            .field("database", &config.get_dbname())
            .field("sslmode", &self.inner.mode)
            .finish_non_exhaustive()
    }
}

/// A Unix socket cannot be encrypted and need not be: as with libpq, `sslmode` does not apply to it.
fn is_unix(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| !matches!(host, Host::Tcp(_)))
}

fn ssl_mode(mode: Mode) -> SslMode {
    match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    }
}

fn set_defaults(config: &mut Config) {
    if config.get_application_name().is_none() {
        config.application_name(APPLICATION_NAME);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
}

/// Whether what is sent to `host` stays on this machine. A Unix socket has no host name.
fn is_local(config: &Config, host: &str) -> bool {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    let is_loopback = |address: IpAddr| address.is_loopback();
    host.is_empty() || host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Diesel keeps only a text, so the causes are put into it.
fn bad_connection(error: &tokio_postgres::Error) -> ConnectionError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    ConnectionError::BadConnection(text)
}
