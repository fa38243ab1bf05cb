//! Jobs whose leases passed long ago, by the indexes of leases alone.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use leasehold_core::{BatchSize, Job, JobId, QueueName, Record, Result, time};

use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, QUEUES_PER_SCRIPT, queue_name};
use crate::{id, row};

/// How many names or ids are asked for at once.
const PAGE: usize = 10_000;

/// The first of them by id (G4).
pub(crate) async fn stuck(link: &Link, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
    let deadline = time::earlier(link.now("stuck").await?, older_than);
    let asked = link.layout.shards().map(|shard| of_shard(link, shard, deadline));
    let mut found = join_all(asked).await.into_iter().collect::<Result<Vec<_>>>()?.concat();
    found.sort_unstable_by_key(|(_, job)| *job);
    let is_stuck = |record| match record {
        Record::Live(job) => {
            Some(job).filter(|job| job.lease.as_ref().is_some_and(|lease| lease.until <= deadline))
        }
        Record::Finished(_) => None,
    };
    let mut jobs: Vec<Job> = Vec::new();
    let mut rest = found.as_slice();
    while jobs.len() < limit.as_usize() && !rest.is_empty() {
        let (page, others) = rest.split_at((limit.as_usize() - jobs.len()).min(rest.len()));
        rest = others;
        let rows = link.rows("stuck", page).await?.into_iter().flatten();
        jobs.extend(rows.filter_map(|row| row::readable(row.record())).filter_map(is_stuck));
    }
    Ok(jobs)
}

/// All jobs of one shard whose leases end no later than this.
async fn of_shard(link: &Link, shard: Shard, deadline: DateTime<Utc>) -> Result<Vec<(QueueName, JobId)>> {
    let (mut queues, mut found): (Vec<QueueName>, Vec<_>) = (Vec::new(), Vec::new());
    loop {
        let mut command = redis::cmd("ZRANGEBYSCORE");
        command
            .arg(format!("{}:leases", link.layout.base(shard)))
            .arg("-inf")
            .arg(deadline.timestamp_micros());
        command.arg("LIMIT").arg(queues.len()).arg(PAGE);
        let page = link.send::<Vec<String>>("stuck", Effect::Read, &command).await?;
        let is_last = page.len() < PAGE;
        queues.extend(page.into_iter().filter_map(queue_name));
        if is_last {
            break;
        }
    }
    for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
        let mut open: Vec<(&QueueName, String)> = chunk.iter().map(|queue| (queue, "-".to_owned())).collect();
        while !open.is_empty() {
            let mut pipeline = redis::pipe();
            for (queue, from) in &open {
                pipeline.cmd("ZRANGEBYLEX").arg(format!("{}:leased", link.layout.queue(queue))).arg(from);
                pipeline.arg(format!("[{}~", row::time_text(deadline))).arg("LIMIT").arg(0).arg(PAGE);
            }
            let pages = link.send_all::<Vec<Vec<String>>>("stuck", Effect::Read, &pipeline).await?;
            let mut more = Vec::new();
            for ((queue, _), members) in open.iter().zip(pages) {
                let ids = members.iter().filter_map(|member| id::parse(member.get(18..)?));
                found.extend(ids.map(|job| ((*queue).clone(), job)));
                if let Some(last) = members.last().filter(|_| members.len() == PAGE) {
                    more.push((*queue, format!("({last}")));
                }
            }
            open = more;
        }
    }
    Ok(found)
}
