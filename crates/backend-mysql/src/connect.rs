//! How the server is reached: by one connection, or by a pool of them.

use std::fmt;
use std::time::Duration;

use diesel::{ConnectionError, ConnectionResult};
use diesel_async::AsyncMysqlConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use futures_util::FutureExt;
use leasehold_core::{Invalid, Problem, Result};
use leasehold_sql::Retirement;
use leasehold_sql::pool::{Checks, Size};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use percent_encoding::percent_decode_str;

use crate::cancel;
use crate::packet::Packet;

const PATIENCE: Duration = Duration::from_secs(10);
const KEEPALIVE_MS: u32 = 60_000;
/// The protocol knows no larger packets.
const LARGEST: usize = 1 << 30;
/// The server answers, and has next to nothing to do.
const CHECKS: Checks = Checks::new("DO 0");

/// What is said first on every connection. READ COMMITTED: a statement locks the rows that it finds and no gaps between them, so
/// that nobody waits to enqueue. English: logs
/// are easier to search in one language.
const ALWAYS: [&str; 2] =
    ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION lc_messages = 'en_US'"];
/// What is said on those on which only the store's own statements are run. None of them waits for the lock of another session for
/// longer than 5 s, of a row or of a table: verdicts, heartbeats, claims and reclaims skip locked rows, and what has to wait (a
/// unique key, the word of an administrator) gives up then.
const OWN: [&str; 2] = [
    "SET SESSION sql_mode = 'STRICT_TRANS_TABLES', SESSION autocommit = 1, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1",
    "SET SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 5",
];
/// What a migration says, which may have to wait for others.
pub(crate) const PATIENT: &str =
    "SET SESSION innodb_lock_wait_timeout = DEFAULT, SESSION lock_wait_timeout = DEFAULT";

/// Where the server is and how to reach it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector {
    opts: Opts,
    is_own: bool,
}

impl Connector {
    /// Reads a URL `mysql://…` or `mariadb://…`, with the parameters that mysql_async knows, and `ssl_ca`: the path of a PEM file
    /// with the certificates of those who may vouch for the server, besides the well-known ones.
    ///
    /// # Errors
    /// [`Invalid`], which names the parameter but never quotes the URL.
    pub(crate) fn parse(url: &str) -> Result<Self, Invalid> {
        let rest = url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://"));
        let rest = rest.ok_or_else(|| malformed("a URL that begins with mysql:// or mariadb://"))?;
        let (rest, ca) = without_ca(rest)?;
        let opts = Opts::from_url(&format!("mysql://{rest}"))
            .map_err(|_| malformed("mysql://user:password@host:port/database with known parameters"))?;
        if opts.db_name().is_none() {
            return Err(malformed("a URL that names a database"));
        }
        let mut builder = OptsBuilder::from_opts(opts.clone())
            // diesel has its own.
            .stmt_cache_size(0)
            .client_found_rows(true)
            .prefer_socket(false)
            .tcp_keepalive(Some(KEEPALIVE_MS))
            .tcp_nodelay(true);
        if let Some(ca) = ca {
            let ssl = opts.ssl_opts().cloned().unwrap_or_else(SslOpts::default);
            builder = builder.ssl_opts(ssl.with_root_certs(vec![std::path::PathBuf::from(ca).into()]));
        }
        let opts = Opts::from(builder);
        if opts.ssl_opts().is_some() {
            // Whoever has installed another one before is welcome to it.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        Ok(Self { opts, is_own: false })
    }

    /// The same server, by connections on which only the store's own statements are run.
    pub(crate) fn own(&self) -> Self {
        Self { is_own: true, ..self.clone() }
    }

    /// One connection for diesel, with the session's settings made.
    pub(crate) async fn open(&self) -> ConnectionResult<AsyncMysqlConnection> {
        match tokio::time::timeout(PATIENCE, self.open_unbounded()).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(ConnectionError::BadConnection(format!("no answer from the server in {PATIENCE:?}")))
            }
        }
    }

    async fn open_unbounded(&self) -> ConnectionResult<AsyncMysqlConnection> {
        let own = self.is_own.then_some(OWN).into_iter().flatten();
        let init: Vec<&str> = ALWAYS.into_iter().chain(own).collect();
        let mut opts = OptsBuilder::from_opts(self.opts.clone()).init(init);
        if self.is_own {
            // A row may have three documents, and the driver would refuse to read what is larger than a packet that may be sent.
            opts = opts.max_allowed_packet(Some(LARGEST));
        }
        let bad = |error: mysql_async::Error| ConnectionError::BadConnection(error.to_string());
        let mut conn = Conn::new(opts).await.map_err(bad)?;
        let number = conn.id();
        let packet: Option<u64> = conn.query_first("SELECT @@max_allowed_packet").await.map_err(bad)?;
        let packet = Packet::new(usize::try_from(packet.unwrap_or_default()).unwrap_or(LARGEST));
        let mut conn = AsyncMysqlConnection::try_from(conn).await?;
        cancel::remember(&mut conn, number, packet);
        Ok(conn)
    }

    /// A pool of up to `connections`, in which a caller waits for a free one for up to `wait`.
    pub(crate) fn pool(
        &self,
        connections: usize,
        wait: Duration,
        retirement: &Retirement,
    ) -> Result<Pool<AsyncMysqlConnection>> {
        let connector = self.clone();
        let open = move || {
            let connector = connector.clone();
            async move { connector.open().await }.boxed()
        };
        leasehold_sql::pool::pool(
            open,
            Size { connections, wait, create: PATIENCE },
            CHECKS,
            retirement.clone(),
        )
    }
}

/// A pool of up to `connections` as those of another pool, which do not count there.
pub(crate) fn beside(
    pool: &Pool<AsyncMysqlConnection>,
    connections: usize,
    wait: Duration,
    retirement: &Retirement,
) -> Result<Pool<AsyncMysqlConnection>> {
    leasehold_sql::pool::beside(
        pool,
        Size { connections, wait, create: PATIENCE },
        CHECKS,
        retirement.clone(),
    )
}

/// Without the password.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("host", &self.opts.ip_or_hostname())
            .field("port", &self.opts.tcp_port())
            .field("user", &self.opts.user())
            .field("database", &self.opts.db_name())
            .finish_non_exhaustive()
    }
}

/// The URL without the parameter `ssl_ca`, which only we know, and its value.
fn without_ca(url: &str) -> Result<(String, Option<String>), Invalid> {
    let Some((place, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), None));
    };
    let (ours, others): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|param| param.starts_with("ssl_ca="));
    let path = ours.last().map(|param| percent_decode_str(&param["ssl_ca=".len()..]).decode_utf8());
    let path = path.transpose().map_err(|_| malformed("a path in UTF-8 for ssl_ca"))?;
    let mut others = others.join("&");
    if path.is_some() && !others.contains("require_ssl=") {
        others =
            if others.is_empty() { "require_ssl=true".into() } else { format!("{others}&require_ssl=true") };
    }
    let url = if others.is_empty() { place.to_owned() } else { format!("{place}?{others}") };
    Ok((url, path.map(|path| path.into_owned())))
}

fn malformed(expected: &'static str) -> Invalid {
    Invalid::new("url", Problem::Malformed { expected })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use super::Connector;

    #[test]
    fn a_url_says_where_the_server_is() {
        for url in ["mysql://ada:secret@db:3307/jobs", "mariadb://ada:secret@db:3307/jobs?ssl_ca=/etc/ca.pem"]
        {
            let connector = Connector::parse(url).unwrap();
            let shown = format!("{connector:?}");
            assert!(shown.contains("db") && shown.contains("3307") && shown.contains("jobs"), "{shown}");
            assert!(!shown.contains("secret"), "{shown}");
        }
        assert!(Connector::parse("mariadb://db/jobs?ssl_ca=/etc/ca.pem").unwrap().opts.ssl_opts().is_some());
        assert!(Connector::parse("mysql://db/jobs?require_ssl=true").unwrap().opts.ssl_opts().is_some());
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for url in [
            "",
            "mysql:",
            "postgres://ada:secret@db/jobs",
            "mysql://ada:secret@db",
            "mysql://ada:secret@db/jobs?nonsense=1",
            "mysql://ada:secret@db/jobs?require_ssl=perhaps",
        ] {
            let error = Connector::parse(url).unwrap_err();
            assert_eq!(error.field, "url", "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}");
        }
    }
}
