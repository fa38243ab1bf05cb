//! Worker processes on one ground.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::{Error, Ground, Result, Span};

/// What processes of a crew have found out.
#[derive(Debug, Default, Clone, Copy)]
pub struct Finding {
    /// Operations of the store, of all of them together.
    pub operations: u64,
    /// The most memory that one of them used, in KiB.
    pub memory_kib: u64,
}

/// Processes that handle the messages of a pattern.
pub struct Crew {
    members: Vec<(Child, Option<ChildStdin>)>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Crew {
    /// Starts so many processes of the program, with so many slots each.
    pub fn start(
        program: &Path,
        ground: &Ground,
        pattern: &str,
        processes: usize,
        slots: usize,
    ) -> Result<Self> {
        let (sender, lines) = mpsc::unbounded_channel();
        let mut members = Vec::new();
        for _ in 0..processes {
            let mut command = Command::new(program);
            command.args([ground.backend.name(), &ground.place, pattern, &slots.to_string()]);
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("no output")?);
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut output = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = output.next_line().await {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
            members.push((child, stdin));
        }
        Ok(Self { members, lines })
    }

    /// Waits for so many messages to be handled, and sends the processes home.
    pub async fn handled(mut self, messages: usize) -> Result<(Vec<Span>, Finding)> {
        let mut spans = Vec::with_capacity(messages);
        while spans.len() < messages {
            let line = self.lines.recv().await.ok_or("the processes ended too early")?;
            spans.push(Span::parse(&line).ok_or_else(|| format!("what is {line:?}?"))?);
        }
        for (_, stdin) in &mut self.members {
            drop(stdin.take());
        }
        let mut finding = Finding::default();
        while let Some(line) = self.lines.recv().await {
            match line.strip_prefix("end ").and_then(|numbers| numbers.split_once(' ')) {
                Some((operations, memory)) => {
                    finding.operations += operations.parse::<u64>()?;
                    finding.memory_kib = finding.memory_kib.max(memory.parse()?);
                }
                None => {
                    spans.push(Span::parse(&line).ok_or_else(|| Error::from(format!("what is {line:?}?")))?);
                }
            }
        }
        for (child, _) in &mut self.members {
            let status = child.wait().await?;
            if !status.success() {
                return Err(format!("a process ended with {status}").into());
            }
        }
        Ok((spans, finding))
    }
}
