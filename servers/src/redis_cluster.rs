//! A private cluster of Redis.

use std::time::Duration;

use crate::process::wait_until;
use crate::{Error, Redis, RedisVersion, port};

/// As few masters as a cluster can have.
const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// Nodes that do not agree after this time never will.
const AGREE: Duration = Duration::from_secs(60);

/// A cluster of three masters that nobody else uses. Dropped, it stops, and its data are gone.
#[derive(Debug)]
pub struct RedisCluster {
    /// The masters, then the replicas of each in the same order.
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts three masters with so many replicas each, with `extra` settings which have the last word, and waits until they
    /// agree. A node that does not answer for two seconds is held to have failed.
    ///
    /// # Errors
    /// A server could not be fetched, did not start, or they did not agree.
    pub fn start(version: RedisVersion, replicas: usize, extra: &[(&str, &str)]) -> Result<Self, Error> {
        let nodes = (0..MASTERS * (1 + replicas)).map(|_| node(version, extra));
        let cluster = Self { nodes: nodes.collect::<Result<_, _>>()? };
        cluster.form()?;
        Ok(cluster)
    }

    /// Where clients connect to: all the masters, with commas between.
    #[must_use]
    pub fn url(&self) -> String {
        self.masters().iter().map(Redis::url).collect::<Vec<_>>().join(",")
    }

    /// Those that were masters at the beginning.
    #[must_use]
    pub fn masters(&self) -> &[Redis] {
        &self.nodes[..MASTERS]
    }

    /// Those that were replicas at the beginning: the first of each master, in the order of the masters, then the second.
    #[must_use]
    pub fn replicas(&self) -> &[Redis] {
        &self.nodes[MASTERS..]
    }

    fn form(&self) -> Result<(), Error> {
        let [first, ..] = self.masters() else { return Ok(()) };
        for (place, node) in self.nodes.iter().enumerate() {
            expect(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1))?;
        }
        for (place, master) in self.masters().iter().enumerate() {
            let (from, to) = (place * SLOTS / MASTERS, (place + 1) * SLOTS / MASTERS - 1);
            expect(master, &format!("CLUSTER ADDSLOTSRANGE {from} {to}"))?;
        }
        for node in &self.nodes[1..] {
            let bus = node.bus_port().unwrap_or_default();
            expect(first, &format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()))?;
        }
        self.wait("the nodes do not know each other", |info| {
            info.contains(&format!("cluster_known_nodes:{}\r", self.nodes.len()))
        })?;
        for (place, replica) in self.replicas().iter().enumerate() {
            let master = self.masters()[place % MASTERS].command("CLUSTER MYID")?;
            expect(replica, &format!("CLUSTER REPLICATE {master}"))?;
        }
        self.wait("the cluster did not come up", |info| info.contains("cluster_state:ok"))?;
        self.wait_for_replicas()
    }

    fn wait(&self, otherwise: &str, until: impl Fn(&str) -> bool) -> Result<(), Error> {
        let agreed = |node: &Redis| node.command("CLUSTER INFO").is_ok_and(|info| until(&info));
        let agree = wait_until(AGREE, || self.nodes.iter().all(agreed));
        if agree { Ok(()) } else { Err(Error::new(otherwise)) }
    }

    /// Waits until every replica has what its master has.
    fn wait_for_replicas(&self) -> Result<(), Error> {
        let follows = |node: &Redis| {
            node.command("INFO replication").is_ok_and(|info| info.contains("master_link_status:up"))
        };
        let follow = wait_until(AGREE, || self.replicas().iter().all(follows));
        if follow { Ok(()) } else { Err(Error::new("the replicas do not follow")) }
    }
}

fn node(version: RedisVersion, extra: &[(&str, &str)]) -> Result<Redis, Error> {
    let bus = port::free()?.to_string();
    let settings = [("cluster-enabled", "yes"), ("cluster-node-timeout", "2000"), ("cluster-port", &bus)];
    Redis::start(version, &settings.iter().chain(extra).copied().collect::<Vec<_>>())
}

fn expect(node: &Redis, command: &str) -> Result<(), Error> {
    match node.command(command)?.as_str() {
        "+OK" => Ok(()),
        answer => Err(Error::new(format!("{command}: {answer}"))),
    }
}
