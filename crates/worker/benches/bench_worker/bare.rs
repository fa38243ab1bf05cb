//! A queue by hand: tokio-postgres, LISTEN, a claim, and a NOTIFY in the statement that enqueues.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::ground::Ground;
use crate::latency::waited;
use crate::{Bench, Result};

const ENQUEUE: &str = include_str!("sql/bare_enqueue.sql");
const CLAIM: &str = include_str!("sql/bare_claim.sql");
const SETTLE: &str = include_str!("sql/bare_settle.sql");

pub(crate) struct Bare {
    ground: Ground,
    client: Client,
    enqueue: Statement,
    work: JoinHandle<Result>,
    begun: UnboundedReceiver<Instant>,
}

impl Bare {
    pub(crate) async fn start(bench: &Bench) -> Result<Self> {
        let ground = Ground::new(bench, 1).await?;
        let (client, _) = connect(bench).await?;
        let enqueue = client.prepare(&ground.sql(ENQUEUE)).await?;
        let (worker, hints) = connect(bench).await?;
        worker.batch_execute("LISTEN bench").await?;
        let statements =
            [worker.prepare(&ground.sql(CLAIM)).await?, worker.prepare(&ground.sql(SETTLE)).await?];
        let (sender, begun) = mpsc::unbounded_channel();
        let work = tokio::spawn(work(worker, hints, statements, sender));
        Ok(Self { ground, client, enqueue, work, begun })
    }

    pub(crate) async fn pickup(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.client.query(&self.enqueue, &[&"{}"]).await?;
        waited(&mut self.begun, start).await
    }

    pub(crate) async fn stop(self) -> Result {
        self.work.abort();
        self.ground.remove().await
    }
}

/// Looks whenever somebody says that there is something.
async fn work(
    client: Client,
    mut hints: UnboundedReceiver<()>,
    [claim, settle]: [Statement; 2],
    begun: UnboundedSender<Instant>,
) -> Result {
    while hints.recv().await.is_some() {
        let rows = client.query(&claim, &[]).await?;
        let mut ids: Vec<i64> = Vec::new();
        for row in &rows {
            let _payload: serde_json::Value = serde_json::from_str(row.get(1))?;
            begun.send(Instant::now())?;
            ids.push(row.get(0));
        }
        client.execute(&settle, &[&ids]).await?;
    }
    Ok(())
}

/// A connection, and the hints that come over it.
async fn connect(bench: &Bench) -> Result<(Client, UnboundedReceiver<()>)> {
    let (client, mut connection) = tokio_postgres::connect(&bench.server.url(), NoTls).await?;
    let (sender, hints) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                // Whoever does not listen misses nothing.
                let _ = sender.send(());
            }
        }
    });
    Ok((client, hints))
}
