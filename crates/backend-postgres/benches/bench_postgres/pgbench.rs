//! Bare SQL, by pgbench.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::Result;
use crate::server::Server;

/// A script that `clients` run at the same time, each so many times. It may count them in `run`, which begins at 0.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) clients: usize,
    pub(crate) runs: usize,
}

impl Script {
    /// Runs it, and says how many times a second. The time to connect does not count.
    pub(crate) fn rate(&self, server: &Server) -> Result<f64> {
        tokio::task::block_in_place(|| self.run(server))
    }

    fn run(&self, server: &Server) -> Result<f64> {
        let [clients, runs] = [self.clients, self.runs].map(|number| number.to_string());
        let threads = self.clients.min(2).to_string();
        let mut child = Command::new(&server.pgbench)
            .args(["--no-vacuum", "--protocol", "prepared", "--define", "run=0", "--file", "-"])
            .args(["--client", &clients, "--jobs", &threads, "--transactions", &runs, &server.url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(self.text.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        tps(&String::from_utf8(output.stdout)?).ok_or_else(|| "pgbench did not say how fast it was".into())
    }
}

/// Reads `tps = 1234.5 (without initial connection time)`.
fn tps(report: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix("tps = "))?.split(' ').next()?.parse().ok()
}
