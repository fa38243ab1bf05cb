//! The rows of many jobs, as many at once as their size allows.

use std::collections::HashMap;

use futures_util::future::join_all;
use leasehold_core::{JobId, QueueName, Result};

use crate::error::Effect;
use crate::id;
use crate::link::{BYTES_PER_SCRIPT, Link, grouped};
use crate::row::Row;

/// How many rows are asked for at once: first, and at most if they are small.
const ROWS: (usize, usize) = (32, 500);

impl Link {
    /// The rows of these jobs; none for those that are not there.
    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<Option<Row>>> {
        type Fields = Vec<HashMap<String, Vec<u8>>>;
        let groups =
            grouped(jobs.iter().enumerate().map(|(place, (queue, _))| (self.layout.shard(queue), place)));
        let read = groups.into_values().map(|places| async move {
            let mut rows = Vec::with_capacity(places.len());
            let (mut rest, mut size) = (places.as_slice(), ROWS.0);
            while !rest.is_empty() {
                let (chunk, others) = rest.split_at(size.min(rest.len()));
                rest = others;
                let mut pipeline = redis::pipe();
                for (queue, job) in chunk.iter().map(|place| &jobs[*place]) {
                    pipeline.hgetall(format!("{}:{}", self.layout.queue(queue), id::text(*job)));
                }
                let fields = self.send_all::<Fields>(operation, Effect::Read, &pipeline).await?;
                let bytes: usize = fields.iter().flat_map(HashMap::values).map(Vec::len).sum();
                size = (BYTES_PER_SCRIPT * chunk.len() / bytes.max(1)).clamp(1, ROWS.1);
                rows.extend(chunk.iter().copied().zip(fields));
            }
            Ok(rows)
        });
        let mut rows: Vec<Option<Row>> = std::iter::repeat_with(|| None).take(jobs.len()).collect();
        for (place, fields) in join_all(read).await.into_iter().collect::<Result<Vec<_>>>()?.concat() {
            let (queue, job) = &jobs[place];
            rows[place] = Row::named(*job, queue.clone(), fields);
        }
        Ok(rows)
    }
}
