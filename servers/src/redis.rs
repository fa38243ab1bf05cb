//! A private Redis.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::wait_until;
use crate::server::Server;
use crate::{Error, install, port};

/// A server that does not answer after this time never will.
const START: Duration = Duration::from_secs(30);
/// So many ports are tried, each free when we looked.
const PORTS: usize = 10;
const TAKEN: &str = "Address already in use";
const PATIENCE: Duration = Duration::from_secs(5);

/// Which server that speaks as Redis does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedisVersion {
    /// Redis 7, that of Debian 12.
    Redis7,
    /// Valkey, as Debian's unstable has it.
    Valkey,
}

impl RedisVersion {
    /// Its program; fetches it if it is missing.
    ///
    /// # Errors
    /// That was not possible.
    pub fn program(self) -> Result<PathBuf, Error> {
        match self {
            Self::Redis7 => install::redis(),
            Self::Valkey => install::valkey(),
        }
    }
}

/// A Redis that nobody else uses. Dropped, it stops, and its data are gone.
///
/// It appends every write to a file and never evicts, as a queue wants it: what it has answered survives its being
/// killed, but not always a crash of the machine.
#[derive(Debug)]
pub struct Redis {
    program: PathBuf,
    port: u16,
    settings: Vec<String>,
    server: Mutex<Server>,
}

impl Redis {
    /// Starts a server, with `extra` settings which have the last word, such as `("appendfsync", "always")`.
    ///
    /// # Errors
    /// It could not be fetched, or did not start; then the error has the end of its log.
    pub fn start(version: RedisVersion, extra: &[(&str, &str)]) -> Result<Self, Error> {
        let program = version.program()?;
        let server = Mutex::new(Server::new("redis", "TERM")?);
        let settings =
            ALWAYS.iter().chain(extra).flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]);
        let mut redis = Self { program, port: 0, settings: settings.collect(), server };
        redis.start_on_some_port()?;
        Ok(redis)
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port on 127.0.0.1; a restart does not change it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port on which nodes of a cluster speak with each other, if it was set.
    pub(crate) fn bus_port(&self) -> Option<u16> {
        let name = self.settings.iter().position(|word| word == "--cluster-port")?;
        self.settings.get(name + 1)?.parse().ok()
    }

    /// Its process; `None` while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server().pid()
    }

    /// Sends one command without spaces in its words on a new connection: the answer if it is text, else its first line.
    ///
    /// # Errors
    /// The server is down.
    pub fn command(&self, line: &str) -> Result<String, Error> {
        ask(self.port, line).map_err(Error::io(format!("{line} failed")))
    }

    /// Kills the server, as a crash would.
    ///
    /// # Errors
    /// It could not be killed.
    pub fn kill(&self) -> Result<(), Error> {
        self.server().kill()
    }

    /// Stops the server in good order; its data stay.
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
            if self.try_start(&mut server, self.port)? {
                return Ok(());
            }
        }
        Err(server.log().explain("redis did not get its port back"))
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_on_some_port(&mut self) -> Result<(), Error> {
        for _ in 0..PORTS {
            let port = port::free()?;
            let up = self.try_start(&mut self.server(), port)?;
            if up {
                self.port = port;
                return Ok(());
            }
        }
        Err(self.server().log().explain("redis found no free port"))
    }

    /// Whether it is up; if not, somebody else has the port.
    fn try_start(&self, server: &mut Server, port: u16) -> Result<bool, Error> {
        let mut command = server.command(&self.program)?;
        command.args(["--port", &port.to_string()]).args(&self.settings);
        let said_before = server.log().len();
        server.spawn(command)?;
        let mut up = false;
        wait_until(START, || {
            let ready = server.log().since(said_before).contains("Ready to accept connections");
            up = ready && ask(port, "PING").is_ok_and(|answer| answer == "+PONG");
            up || !server.is_up()
        });
        match up {
            false if !server.log().since(said_before).contains(TAKEN) => {
                Err(server.log().explain("redis did not start"))
            }
            up => Ok(up),
        }
    }
}

const ALWAYS: [(&str, &str); 6] = [
    ("bind", "127.0.0.1"),
    ("daemonize", "no"),
    // The append-only file has it all.
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "everysec"),
    ("maxmemory-policy", "noeviction"),
];

/// A command as a person would type it.
fn ask(port: u16, line: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut answer = String::new();
    reader.read_line(&mut answer)?;
    if let Some(length) = answer.strip_prefix('$').and_then(|length| length.trim_end().parse().ok()) {
        let mut text = vec![0; length];
        reader.read_exact(&mut text)?;
        return String::from_utf8(text).map_err(io::Error::other);
    }
    Ok(answer.trim_end().to_owned())
}
