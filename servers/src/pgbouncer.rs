//! A private PgBouncer.

use std::time::Duration;

use crate::process::wait_until;
use crate::server::Server;
use crate::wire::{self, USER};
use crate::{Error, Postgres, install, port};

/// A server that does not answer after this time never will.
const START: Duration = Duration::from_secs(30);
const PORTS: usize = 10;
const TAKEN: &str = "Address already in use";

/// A PgBouncer that nobody else uses, in front of a [`Postgres`]. Dropped, it stops.
///
/// It pools by transactions and follows prepared statements, as one would set it up for programs that hold many
/// connections. Any database of the server can be reached through it, as the user `leasehold`.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    server: Server,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of `postgres`, which must be up.
    ///
    /// # Errors
    /// It could not be fetched, or did not start; then the error has the end of its log.
    pub fn start(postgres: &Postgres) -> Result<Self, Error> {
        let program = install::pgbouncer()?;
        // Asked by this signal it does not wait for its clients to leave.
        let mut server = Server::new("pgbouncer", "QUIT")?;
        server.write("users", &format!("\"{USER}\" \"\"\n"))?;
        for _ in 0..PORTS {
            let port = port::free()?;
            let settings = server.write("settings", &settings(postgres.port(), port))?;
            let mut command = server.command(&program)?;
            command.arg(settings);
            let said_before = server.log().len();
            server.spawn(command)?;
            if answers(&mut server, port, said_before) {
                return Ok(Self { port, server });
            }
            if !server.log().since(said_before).contains(TAKEN) {
                break;
            }
        }
        Err(server.log().explain("pgbouncer did not start"))
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/leasehold", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process; `None` if it was not started.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Runs `sql` on a new connection: the first column of the first row, if there is one that is not null.
    ///
    /// # Errors
    /// It or the server behind it is down or refused.
    pub fn query(&self, sql: &str) -> Result<Option<String>, Error> {
        wire::query(self.port, "leasehold", sql).map_err(Error::io(format!("{sql} failed")))
    }
}

/// Whether this very server, and not somebody else's on that port, takes connections.
fn answers(server: &mut Server, port: u16, said_before: usize) -> bool {
    let listening = format!("listening on 127.0.0.1:{port}");
    let mut up = false;
    wait_until(START, || {
        up = server.log().since(said_before).contains(&listening)
            && wire::query(port, "postgres", "select 1").is_ok();
        up || !server.is_up()
    });
    up
}

/// `server_login_retry`: when the server is back, nobody is to wait 15 seconds for it.
fn settings(postgres: u16, own: u16) -> String {
    format!(
        "[databases]
* = host=127.0.0.1 port={postgres}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = trust
auth_file = users
pool_mode = transaction
max_prepared_statements = 200
default_pool_size = 100
max_client_conn = 1000
server_login_retry = 1
"
    )
}
