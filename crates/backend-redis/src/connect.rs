//! How a connection is made, and what is asked of a server first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Invalid, Problem, Result, StoreError};
use redis::aio::{ConnectionManagerConfig, PubSub};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisError,
    TlsCertificates,
};

use crate::cluster::Cluster;
use crate::error::{Effect, failed};
use crate::single::{self, Single};
use crate::wire::Wire;

/// So a certificate begins.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// What to do with the address of a Sentinel.
const SENTINEL: &str = "a Sentinel answers at this address, and the store does not ask Sentinels where the master is: give the address of the master, or \
     the one behind which it is kept";

/// Where the server is, or some servers of a cluster; and how long it may take.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    clients: Vec<Client>,
    /// PEM certificates of those who may vouch for the server, instead of those that the machine trusts.
    authority: Option<Vec<u8>>,
    connect_timeout: Duration,
    response_timeout: Duration,
    /// After so long a rest a connection is tried out.
    pub(crate) rest: Duration,
}

/// What a server says about itself, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    eviction: String,
    appends: bool,
    version: String,
}

impl Address {
    pub(crate) fn new(
        url: &str,
        authority: Option<Vec<u8>>,
        [connect_timeout, response_timeout]: [Duration; 2],
    ) -> Result<Self, Invalid> {
        let is_pem = |pem: &Vec<u8>| pem.windows(CERTIFICATE.len()).any(|bytes| bytes == CERTIFICATE);
        if !authority.as_ref().is_none_or(is_pem) {
            return Err(Invalid::new(
                "root_certificate",
                Problem::Malformed { expected: "certificates as PEM" },
            ));
        }
        let rest = single::REST;
        let mut address = Self { clients: Vec::new(), authority, connect_timeout, response_timeout, rest };
        for url in url.split(',') {
            let expected =
                "redis[s]://[user:password@]host[:port][/database], or several with commas between";
            let malformed = || Invalid::new("url", Problem::Malformed { expected });
            if !is_clear(url) {
                return Err(malformed());
            }
            let info = url.into_connection_info().map_err(|_| malformed())?;
            if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
                // Whoever has installed another one before is welcome to it.
                drop(rustls::crypto::ring::default_provider().install_default());
            }
            address.clients.push(address.client(info).map_err(|error| address.unusable(&error))?);
        }
        Ok(address)
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, RedisError> {
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        match (&self.authority, info.addr()) {
            (Some(root_cert), ConnectionAddr::TcpTls { .. }) => {
                let root_cert = Some(root_cert.clone());
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(info),
        }
    }

    fn unusable(&self, error: &RedisError) -> Invalid {
        tracing::debug!(%error, "no client could be made");
        let field = if self.authority.is_some() { "root_certificate" } else { "url" };
        Invalid::new(
            field,
            Problem::Malformed { expected: "what a client can be made of: certificates as PEM" },
        )
    }

    /// Connects; also tells whether what is answered is kept in a file.
    pub(crate) async fn open(&self) -> Result<(Wire, bool)> {
        let wire = self.wire().await?;
        let facts = facts(&wire).await?;
        for facts in &facts {
            refuse_eviction(&facts.eviction)?;
        }
        let appends = facts.iter().all(|facts| facts.appends);
        let appendonly = if appends { "yes" } else { "no" };
        let (appendfsync, cluster) = (fsync(&wire).await, matches!(wire, Wire::Cluster(_)));
        let version = facts.first().map(|facts| facts.version.as_str()).unwrap_or_default();
        tracing::info!(appendonly, appendfsync, version, cluster, "connected to Redis");
        Ok((wire, appends))
    }

    async fn wire(&self) -> Result<Wire> {
        let refused = |error| failed("connect", Effect::Read, error);
        let (client, single) = self.first().await.map_err(refused)?;
        let mut command = redis::cmd("INFO");
        let (mut connection, _) = single.connection().await.map_err(refused)?;
        command.arg("server").arg("cluster");
        let info: String = command.query_async(&mut connection).await.map_err(refused)?;
        let says = |line: &str| info.lines().any(|other| other == line);
        if says("redis_mode:sentinel") {
            return Err(StoreError::conflict(SENTINEL));
        }
        if says("cluster_enabled:1") {
            self.cluster(client).await.map_err(refused)
        } else {
            Ok(Wire::Single(Arc::new(single)))
        }
    }

    async fn cluster(&self, client: &Client) -> Result<Wire, RedisError> {
        // The driver repeats nothing: it could not know what may be done twice.
        let nodes = self.clients.iter().map(|client| client.get_connection_info().clone());
        let builder = ClusterClientBuilder::new(nodes).retries(0);
        let builder = builder.tcp_settings(TcpSettings::default().set_nodelay(true));
        let mut builder =
            builder.connection_timeout(self.connect_timeout).response_timeout(self.response_timeout);
        if let Some(root_cert) = &self.authority {
            let root_cert = Some(root_cert.clone());
            builder = builder.certs(TlsCertificates { client_tls: None, root_cert });
        }
        tracing::debug!(node = %client.get_connection_info().addr(), "found a cluster");
        let connection = builder.build()?.get_async_connection().await?;
        Ok(Wire::Cluster(Arc::new(Cluster::new(connection, self.rest))))
    }

    /// The first server that answers.
    async fn first(&self) -> Result<(&Client, Single), RedisError> {
        let mut failure = None;
        for client in &self.clients {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(self.connect_timeout))
                .set_response_timeout(Some(self.response_timeout))
                .set_number_of_retries(1);
            match Single::new(client.clone(), config, self.rest).await {
                Ok(single) => return Ok((client, single)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| RedisError::from(std::io::Error::other("there is no address"))))
    }

    /// A connection for messages. In a cluster any node has all of them.
    pub(crate) async fn listener(&self, wire: &Wire, channel: &str) -> Result<PubSub, RedisError> {
        let mut clients = self.clients.clone();
        if let Wire::Cluster(cluster) = wire {
            // Those we were told of may be gone by now.
            clients.extend(self.nodes(&cluster.connection()).await.unwrap_or_default());
        }
        let mut failure = None;
        for client in clients {
            let subscribed = async {
                let mut connection = client.get_async_pubsub().await?;
                connection.subscribe(channel).await?;
                Ok(connection)
            };
            match tokio::time::timeout(self.connect_timeout, subscribed).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => failure = Some(error),
                Err(late) => failure = Some(RedisError::from(std::io::Error::from(late))),
            }
        }
        Err(failure.unwrap_or_else(|| RedisError::from(std::io::Error::other("there is no address"))))
    }

    /// The nodes of a cluster that are up.
    async fn nodes(&self, connection: &ClusterConnection) -> Result<Vec<Client>, RedisError> {
        let nodes: String = redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection.clone()).await?;
        let Some(known) = self.clients.first().map(Client::get_connection_info) else {
            return Ok(Vec::new());
        };
        let up = nodes.lines().filter_map(node);
        up.map(|(host, port)| {
            let addr = match known.addr() {
                ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                    ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
                }
                _ => ConnectionAddr::Tcp(host, port),
            };
            self.client(known.clone().set_addr(addr))
        })
        .collect()
    }
}

/// Whether no `@` stands behind the host. If a password holds a bare `/`, `?` or `#`, what stands before that would be taken for the
/// host, and be shown.
fn is_clear(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    // A socket's user and password are parameters.
    authority.starts_with('/')
        || authority.split_once(['/', '?', '#']).is_none_or(|(_, rest)| !rest.contains('@'))
}

/// The address in one line of `CLUSTER NODES`, if the node is up: `id host:port@bus,name flags …`.
fn node(line: &str) -> Option<(String, u16)> {
    let mut words = line.split(' ');
    let (address, flags) = (words.nth(1)?, words.next()?);
    if flags.split(',').any(|flag| matches!(flag, "fail" | "handshake" | "noaddr")) {
        return None;
    }
    let (host, port) = address.split('@').next()?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// What every master says.
async fn facts(wire: &Wire) -> Result<Vec<Facts>> {
    let mut command = redis::cmd("INFO");
    command.arg("memory").arg("persistence").arg("server");
    let answers = everywhere::<String>(wire, &command).await;
    let answers = answers.map_err(|error| failed("connect", Effect::Read, error))?;
    Ok(answers.iter().map(|info| parse(info)).collect())
}

fn parse(info: &str) -> Facts {
    let facts: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
    Facts {
        eviction: fact("maxmemory_policy").to_owned(),
        appends: fact("aof_enabled") == "1",
        version: fact("redis_version").to_owned(),
    }
}

fn refuse_eviction(policy: &str) -> Result<()> {
    if policy == "noeviction" {
        return Ok(());
    }
    let reason = format!(
        "the server evicts keys and would lose jobs: its maxmemory-policy is {policy}, not noeviction"
    );
    Err(StoreError::conflict(reason))
}

/// How often the servers write to the disk. Where CONFIG is forbidden, nobody knows.
async fn fsync(wire: &Wire) -> String {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("appendfsync");
    let settings = everywhere::<HashMap<String, String>>(wire, &command).await.unwrap_or_default();
    let mut values: Vec<String> =
        settings.into_iter().filter_map(|mut setting| setting.remove("appendfsync")).collect();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { "unknown".to_owned() } else { values.join(", ") }
}

/// Asks the server, or every master.
pub(crate) async fn everywhere<T: FromRedisValue>(wire: &Wire, command: &Cmd) -> Result<Vec<T>, RedisError> {
    match wire {
        Wire::Single(_) => Ok(vec![wire.command(command, Effect::Read).await?]),
        Wire::Cluster(cluster) => {
            let masters = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
            let answer = cluster.connection().route_command(command.clone(), masters).await?;
            let answers: HashMap<String, T> = redis::from_redis_value(answer.extract_error()?)?;
            Ok(answers.into_values().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_down_are_not_asked() {
        let up = "07c3 127.0.0.1:30004@31004,host slave e7d1 0 1426238317239 4 connected";
        assert_eq!(node(up), Some(("127.0.0.1".to_owned(), 30004)));
        let down = "6ec2 127.0.0.1:30005@31005 master,fail - 1426238316232 1426238315730 5 disconnected";
        assert_eq!(node(down), None);
        assert_eq!(node("nonsense"), None);
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let times = [Duration::from_secs(1); 2];
        assert!(Address::new("redis://a,redis://b:7000", None, times).is_ok());
        for bad in [
            "",
            "http://a",
            "redis://a,",
            "redis://a:port",
            "redis://ada:1/s3cret@a",
            "redis://ada:1?s3cret@a",
            "valkeys://ada:1#s3cret@a",
            "redis://b,redis://ada:s3,cret@a",
        ] {
            let error = Address::new(bad, None, times).unwrap_err();
            assert_eq!(error.field, "url", "{bad}");
            assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
        }
        for good in [
            "VALKEYS://ada:s3cret@a",
            "redis+unix:///tmp/s?user=ada&pass=s3@cret",
            "rediss://ada:s3%40cret@a#insecure",
        ] {
            let address = Address::new(good, None, times).unwrap();
            let shown = format!("{address:?} {address:#?}");
            assert!(!shown.contains("cret") && shown.contains("ada"), "{shown}");
        }
        let authority = Some(b"no certificate".to_vec());
        let error = Address::new("rediss://a", authority, times).unwrap_err();
        assert_eq!(error.field, "root_certificate");
    }
}
