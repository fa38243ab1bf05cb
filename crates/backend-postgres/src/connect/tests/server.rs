//! A Postgres of one's own, and certificates for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use diesel_async::SimpleAsyncConnection;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::connect::Connector;

pub(super) const PASSWORD: &str = "Sw0rdfish!Xyzzy";

/// `app` may come with a password, `certified` only with a certificate besides, `plain` only without TLS.
const ACCESS: &str = "
local     all all       trust
hostssl   all certified all scram-sha-256 clientcert=verify-full
hostnossl all certified all reject
hostnossl all plain     all trust
hostssl   all plain     all reject
host      all all       all scram-sha-256
";

/// A running server. It is stopped and removed when dropped.
pub(super) struct Server {
    directory: PathBuf,
    port: u16,
    process: Child,
}

impl Server {
    /// A server with a certificate for the name `localhost`.
    pub(super) async fn encrypted() -> Self {
        Self::start(&["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key", "ssl_ca_file=ca.crt"])
            .await
    }

    /// A server that does not know TLS.
    pub(super) async fn unencrypted() -> Self {
        Self::start(&["ssl=off"]).await
    }

    async fn start(settings: &[&str]) -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("leasehold-connect-{}-{port}", std::process::id()));
        create(&directory);
        let process = launch(&directory, port, settings);
        let server = Self { directory, port, process };
        server.create_roles().await;
        server
    }

    async fn create_roles(&self) {
        let mut connection = Connector::parse(&self.socket()).unwrap().open().await.unwrap();
        let roles = format!(
            "CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE certified LOGIN PASSWORD '{PASSWORD}';
             CREATE ROLE plain LOGIN"
        );
        connection.batch_execute(&roles).await.unwrap();
    }

    /// The address of the server's Unix socket, for the superuser.
    pub(super) fn socket(&self) -> String {
        format!("host={} port={} user=postgres dbname=postgres", self.directory.display(), self.port)
    }

    /// A URL for `app` by the name `localhost`.
    pub(super) fn url(&self, options: &str) -> String {
        self.url_of("app", "localhost", options)
    }

    pub(super) fn url_of(&self, user: &str, host: &str, options: &str) -> String {
        format!("postgres://{user}:{PASSWORD}@{host}:{}/postgres?{options}", self.port)
    }

    /// A file of the server: `ca.crt`, `stranger.crt`, `client.crt`, `client.key`.
    pub(super) fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-QUIT", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn create(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    own(directory);
    let path = directory.display().to_string();
    let made = command("initdb")
        .args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--locale=C",
            "--encoding=UTF8",
            "-D",
            &path,
        ])
        .output()
        .unwrap();
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    fs::write(directory.join("pg_hba.conf"), ACCESS).unwrap();
    write_certificates(directory);
}

fn launch(directory: &Path, port: u16, settings: &[&str]) -> Child {
    let path = directory.display().to_string();
    let mut server = command("postgres");
    server.args(["-D", &path, "-k", &path, "-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
    server.args(["-c", "fsync=off", "-c", "lc_messages=C"]);
    for setting in settings {
        server.args(["-c", setting]);
    }
    let mut process = server.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut seen = Vec::new();
    let is_ready = log.by_ref().any(|line| {
        seen.push(line);
        seen.last().is_some_and(|line| line.contains("ready to accept connections"))
    });
    assert!(is_ready, "the server did not start: {seen:#?}");
    std::thread::spawn(move || log.for_each(drop));
    process
}

/// A program of Postgres. The server refuses to run as root, so root becomes `postgres`.
fn command(program: &str) -> Command {
    let program = leasehold_servers::postgres15().unwrap().join(program);
    if id("-u", "") != 0 {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

fn own(path: &Path) {
    if id("-u", "") == 0 {
        chown(path, Some(id("-u", "postgres")), Some(id("-g", "postgres"))).unwrap();
    }
}

fn id(kind: &str, user: &str) -> u32 {
    let arguments = [kind, user].into_iter().filter(|argument| !argument.is_empty());
    let output = Command::new("id").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn write_certificates(directory: &Path) {
    let (authority, issuer) = authority("authority");
    write(directory, "ca.crt", &authority);
    write(directory, "stranger.crt", &self::authority("stranger").0);
    let (certificate, key) = certificate(&issuer, "server", &["localhost"]);
    write(directory, "server.crt", &certificate);
    write(directory, "server.key", &key);
    let (certificate, key) = self::certificate(&issuer, "certified", &[]);
    write(directory, "client.crt", &certificate);
    write(directory, "client.key", &key);
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    own(&path);
}

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

fn certificate(issuer: &Issuer<'static, KeyPair>, name: &str, hosts: &[&str]) -> (String, String) {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}
