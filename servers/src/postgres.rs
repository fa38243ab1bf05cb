//! A private PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::wait_until;
use crate::server::Server;
use crate::settings::Settings;
use crate::wire::{self, USER};
use crate::{Error, command, install, port};

/// A server that does not answer after this time never will.
const START: Duration = Duration::from_secs(60);
/// So many ports are tried, each free when we looked.
const PORTS: usize = 10;
const TAKEN: &str = "Address already in use";
const DATABASE: &str = "leasehold";

/// Which PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PostgresVersion {
    /// That of Debian 12.
    V15,
    /// The newest release.
    V18,
}

impl PostgresVersion {
    /// The directory of its programs; installs or fetches them if they are missing.
    ///
    /// # Errors
    /// That was not possible.
    pub fn bin(self) -> Result<PathBuf, Error> {
        match self {
            Self::V15 => install::postgres15(),
            Self::V18 => install::postgres18(),
        }
    }
}

/// A PostgreSQL that nobody else uses. Dropped, it stops, and its data are gone.
///
/// The user `leasehold` may do everything, needs no password, and has a database of the same name.
#[derive(Debug)]
pub struct Postgres {
    version: PostgresVersion,
    bin: PathBuf,
    port: u16,
    settings: Vec<String>,
    /// Where its locales are, if not where the system has them.
    locales: Option<PathBuf>,
    server: Mutex<Server>,
}

impl Postgres {
    /// Starts a server with [`Settings::Tests`], and `extra` settings which have the last word.
    ///
    /// # Errors
    /// It could not be installed, or did not start; then the error has the end of its log.
    pub fn start(version: PostgresVersion, extra: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_with(version, Settings::Tests, extra)
    }

    /// Starts a server with `settings`, and `extra` ones which have the last word.
    ///
    /// # Errors
    /// It could not be installed, or did not start; then the error has the end of its log.
    pub fn start_with(
        version: PostgresVersion,
        settings: Settings,
        extra: &[(&str, &str)],
    ) -> Result<Self, Error> {
        Self::start_in(version, settings, extra, None)
    }

    /// Starts a server of version 15 with [`Settings::Tests`] and `extra` ones, whose sessions speak German. Its log is in English.
    ///
    /// # Errors
    /// As [`start`](Self::start); or there is no German locale, and it could not be made.
    pub fn start_german(extra: &[(&str, &str)]) -> Result<Self, Error> {
        let locales = Some(install::german()?);
        let postgres = Self::start_in(PostgresVersion::V15, Settings::Tests, extra, locales)?;
        postgres.query(&format!("alter database {DATABASE} set lc_messages = 'de_DE.UTF-8'"))?;
        Ok(postgres)
    }

    fn start_in(
        version: PostgresVersion,
        settings: Settings,
        extra: &[(&str, &str)],
        locales: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let bin = version.bin()?;
        let server = Mutex::new(Server::new("postgres", "INT")?);
        let settings = settings.and(extra).map(|(name, value)| format!("{name}={value}")).collect();
        let mut postgres = Self { version, bin, port: 0, settings, locales, server };
        postgres.initialise()?;
        postgres.start_on_some_port()?;
        wire::query(postgres.port, "postgres", &format!("create database {DATABASE}"))
            .map_err(Error::io("the database could not be made"))?;
        Ok(postgres)
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// The port on 127.0.0.1; a restart does not change it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its programs.
    #[must_use]
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The process of the postmaster; `None` while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server().pid()
    }

    /// Runs `sql` on a new connection: the first column of the first row, if there is one that is not null.
    ///
    /// # Errors
    /// The server is down or refused.
    pub fn query(&self, sql: &str) -> Result<Option<String>, Error> {
        wire::query(self.port, DATABASE, sql).map_err(Error::io(format!("{sql} failed")))
    }

    /// Kills the server with all its processes, as a crash would. When this returns, none of them is left.
    ///
    /// # Errors
    /// One of them could not be killed.
    pub fn kill(&self) -> Result<(), Error> {
        let mut server = self.server();
        server.kill()?;
        remove_shared_memory(server.directory());
        Ok(())
    }

    /// Stops the server in good order; its data stay. Open connections are cut.
    ///
    /// # Errors
    /// It did not stop, and could not be killed.
    pub fn stop(&self) -> Result<(), Error> {
        self.server().stop()
    }

    /// Starts the server again, with the same data and on the same port. One that runs is stopped first.
    ///
    /// # Errors
    /// It did not start; the error has the end of its log.
    pub fn restart(&self) -> Result<(), Error> {
        let mut server = self.server();
        server.stop()?;
        for _ in 0..PORTS {
            match self.try_start(&mut server, self.port)? {
                Start::Up => return Ok(()),
                Start::PortTaken => {}
            }
        }
        Err(server.log().explain("postgres did not get its port back"))
    }

    fn initialise(&self) -> Result<(), Error> {
        let server = self.server();
        let mut initdb = self.program(&server, "initdb")?;
        initdb.args(["--pgdata", "data", "--username", USER, "--auth", "trust", "--encoding", "UTF8"]);
        command::run(initdb.args(["--locale", "C.UTF-8", "--no-sync", "--no-instructions"])).map(drop)
    }

    fn start_on_some_port(&mut self) -> Result<(), Error> {
        for _ in 0..PORTS {
            self.port = port::free()?;
            match self.try_start(&mut self.server(), self.port)? {
                Start::Up => return Ok(()),
                Start::PortTaken => {}
            }
        }
        Err(self.server().log().explain("postgres found no free port"))
    }

    fn try_start(&self, server: &mut Server, port: u16) -> Result<Start, Error> {
        let mut postgres = self.program(server, "postgres")?;
        postgres.args(["-D", "data", "-p", &port.to_string()]);
        for setting in &self.settings {
            postgres.args(["-c", setting]);
        }
        let said_before = server.log().len();
        server.spawn(postgres)?;
        let mut up = false;
        let decided = wait_until(START, || {
            up = answers(server.directory(), port);
            up || !server.is_up()
        });
        match (up, decided) {
            (true, _) => Ok(Start::Up),
            (false, true) if server.log().since(said_before).contains(TAKEN) => Ok(Start::PortTaken),
            (false, true) => Err(server.log().explain("postgres ended as it was started")),
            (false, false) => Err(server.log().explain("postgres does not answer")),
        }
    }

    fn program(&self, server: &Server, name: &str) -> Result<Command, Error> {
        let mut command = server.command(&self.bin.join(name))?;
        if self.version == PostgresVersion::V18 {
            command.env("LD_LIBRARY_PATH", self.bin.with_file_name("lib"));
        }
        if let Some(locales) = &self.locales {
            command.env("LOCPATH", locales);
        }
        Ok(command)
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Start {
    Up,
    /// Somebody was quicker.
    PortTaken,
}

/// Whether this very server, and not somebody else's on that port, takes connections.
fn answers(directory: &Path, port: u16) -> bool {
    lock_file(directory).get(7).is_some_and(|status| status.trim() == "ready")
        && wire::query(port, "postgres", "select 1").is_ok()
}

/// A killed Postgres leaves behind a few bytes of shared memory, by which the next one on the same data sees whether
/// anybody is left of it. Nobody is.
fn remove_shared_memory(directory: &Path) {
    let lock_file = lock_file(directory);
    if let Some(id) = lock_file.get(6).and_then(|line| line.split_whitespace().nth(1)) {
        // A restart would do the same; if it fails, a few bytes stay until the machine is started again.
        let _ = command::run(Command::new("ipcrm").args(["--shmem-id", id]));
    }
}

/// The lines of `postmaster.pid`: the seventh is the key and id of its shared memory, the eighth how it is.
fn lock_file(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("data/postmaster.pid")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
