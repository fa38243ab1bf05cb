//! A private MySQL or MariaDB.

mod wire;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::wait_until;
use crate::server::Server;
use crate::settings::Settings;
use crate::{Error, command, install, port};

/// A server that does not answer after this time never will.
const START: Duration = Duration::from_secs(120);
/// So many ports are tried, each free when we looked.
const PORTS: usize = 10;
const TAKEN: &str = "Address already in use";
const USER: &str = "leasehold";
const DATABASE: &str = "leasehold";

/// What each start runs first. The user may do everything, so that tests can make users who may not.
const INIT: &str = "CREATE USER IF NOT EXISTS leasehold@'%';
GRANT ALL PRIVILEGES ON *.* TO leasehold@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS leasehold;
";

/// Both are to serve many connections, each with many prepared statements.
const ALWAYS: [(&str, &str); 5] = [
    ("bind-address", "127.0.0.1"),
    ("skip-name-resolve", "ON"),
    ("max-connections", "1000"),
    ("max-prepared-stmt-count", "500000"),
    ("innodb-buffer-pool-size", "256M"),
];

/// A commit is in the hands of the system, not yet on the disk: a killed server forgets none.
const TESTS: [(&str, &str); 4] = [
    ("innodb-flush-log-at-trx-commit", "2"),
    ("innodb-doublewrite", "OFF"),
    ("skip-log-bin", "ON"),
    ("performance-schema", "OFF"),
];

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MysqlFlavor {
    /// MySQL 9.
    Mysql,
    /// MariaDB 10.11.
    Mariadb,
}

impl MysqlFlavor {
    fn install(self) -> Result<PathBuf, Error> {
        match self {
            Self::Mysql => install::mysql(),
            Self::Mariadb => install::mariadb(),
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Mysql => "mysqld",
            Self::Mariadb => "mariadbd",
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::Mysql => "mysql",
            Self::Mariadb => "mariadb",
        }
    }
}

/// A MySQL or MariaDB that nobody else uses. Dropped, it stops, and its data are gone.
///
/// The user `leasehold` may do everything, needs no password, and has a database of the same name.
#[derive(Debug)]
pub struct Mysql {
    flavor: MysqlFlavor,
    home: PathBuf,
    port: u16,
    settings: Vec<String>,
    server: Mutex<Server>,
}

impl Mysql {
    /// Starts a server with [`Settings::Tests`], and `extra` settings which have the last word.
    ///
    /// # Errors
    /// It could not be fetched, or did not start; then the error has the end of its log.
    pub fn start(flavor: MysqlFlavor, extra: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_with(flavor, Settings::Tests, extra)
    }

    /// Starts a server with `settings`, and `extra` ones which have the last word.
    ///
    /// # Errors
    /// It could not be fetched, or did not start; then the error has the end of its log.
    pub fn start_with(
        flavor: MysqlFlavor,
        settings: Settings,
        extra: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let home = flavor.install()?;
        let server = Server::new(flavor.scheme(), "TERM")?;
        server.write("init.sql", INIT)?;
        let more: &[_] = if settings == Settings::Tests { &TESTS } else { &[] };
        let all = ALWAYS.iter().chain(more).chain(extra);
        let settings = all.map(|(name, value)| format!("--{name}={value}")).collect();
        let mut mysql = Self { flavor, home, port: 0, settings, server: Mutex::new(server) };
        mysql.initialise()?;
        mysql.start_on_some_port()?;
        Ok(mysql)
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{USER}@127.0.0.1:{}/{DATABASE}", self.flavor.scheme(), self.port)
    }

    /// The port on 127.0.0.1; a restart does not change it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process; `None` while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server().pid()
    }

    /// Where its data are, and the certificate of the authority that MySQL makes for itself.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.server().directory().join("data")
    }

    /// Runs `sql` on a new connection: the first column of the first row, if there is one that is not null.
    ///
    /// # Errors
    /// The server is down or refused.
    pub fn query(&self, sql: &str) -> Result<Option<String>, Error> {
        wire::query(self.port, USER, DATABASE, sql).map_err(Error::io(format!("{sql} failed")))
    }

    /// Kills the server, as a crash would. When this returns, nothing of it is left.
    ///
    /// # Errors
    /// It could not be killed.
    pub fn kill(&self) -> Result<(), Error> {
        self.server().kill()
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
        Err(server.log().explain("the server did not get its port back"))
    }

    fn initialise(&self) -> Result<(), Error> {
        let server = self.server();
        match self.flavor {
            MysqlFlavor::Mysql => {
                let mut mysqld = self.command(&server)?;
                command::run(mysqld.arg("--initialize-insecure")).map(drop)
            }
            MysqlFlavor::Mariadb => self.bootstrap(&server),
        }
    }

    /// What MariaDB's own script does, which expects to be installed.
    fn bootstrap(&self, server: &Server) -> Result<(), Error> {
        let unreadable = |path: &Path| Error::io(format!("{} cannot be used", path.display()));
        let mut script = String::from("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n");
        for name in ["mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data"] {
            let path = self.home.join(format!("root/usr/share/mysql/{name}.sql"));
            script.push_str(&std::fs::read_to_string(&path).map_err(unreadable(&path))?);
        }
        let path = server.write("bootstrap.sql", &script)?;
        command::run(server.command(Path::new("mkdir"))?.arg("data"))?;
        let mut mariadbd = self.command(server)?;
        mariadbd.args(["--bootstrap", "--silent-startup"]);
        command::run_with(&mut mariadbd, File::open(&path).map_err(unreadable(&path))?).map(drop)
    }

    fn start_on_some_port(&mut self) -> Result<(), Error> {
        for _ in 0..PORTS {
            self.port = port::free()?;
            match self.try_start(&mut self.server(), self.port)? {
                Start::Up => return Ok(()),
                Start::PortTaken => {}
            }
        }
        Err(self.server().log().explain("the server found no free port"))
    }

    fn try_start(&self, server: &mut Server, port: u16) -> Result<Start, Error> {
        let mut mysqld = self.command(server)?;
        let init = server.directory().join("init.sql");
        mysqld.args([format!("--port={port}"), format!("--init-file={}", init.display())]);
        mysqld.args(&self.settings);
        let said_before = server.log().len();
        server.spawn(mysqld)?;
        let mut up = false;
        let decided = wait_until(START, || {
            // This very server, and not somebody else's on that port.
            up = server.log().since(said_before).contains("ready for connections")
                && wire::query(port, USER, DATABASE, "SELECT 1").is_ok();
            up || !server.is_up()
        });
        match (up, decided) {
            (true, _) => Ok(Start::Up),
            (false, true) if server.log().since(said_before).contains(TAKEN) => Ok(Start::PortTaken),
            (false, true) => Err(server.log().explain("the server ended as it was started")),
            (false, false) => Err(server.log().explain("the server does not answer")),
        }
    }

    /// The server's program with what it must be told because it is not installed.
    fn command(&self, server: &Server) -> Result<Command, Error> {
        let mut command = server.command(&self.home.join("bin").join(self.flavor.program()))?;
        let usr = self.home.join("root/usr");
        let share = usr.join("share/mysql");
        let directory = server.directory();
        command.arg("--no-defaults");
        command.arg(format!("--basedir={}", usr.display()));
        command.arg(format!("--lc-messages-dir={}", share.display()));
        command.arg(format!("--character-sets-dir={}", share.join("charsets").display()));
        command.arg(format!("--plugin-dir={}", usr.join("lib/mysql/plugin").display()));
        command.arg(format!("--datadir={}", directory.join("data").display()));
        command.arg(format!("--tmpdir={}", directory.display()));
        // Below the data directory, to which it changes: a path has room for a hundred bytes only.
        command.args(["--socket=socket", "--pid-file=pid"]);
        if self.flavor == MysqlFlavor::Mysql {
            command.args(["--mysqlx=OFF", "--secure-file-priv=NULL"]);
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
