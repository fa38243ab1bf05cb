//! Looking: one job, lists of jobs, receipts.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use leasehold_core::{
    Direction, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueName, Receipt, ReceiptStatus,
    Record, Result,
};

use crate::error::Effect;
use crate::id;
use crate::link::{Link, grouped};
use crate::row;

/// Of each queue at least so many ids are asked for at once.
const IDS: usize = 16;

pub(crate) async fn get(link: &Link, job: JobId) -> Result<Option<Record>> {
    let Some(queue) = link.locate_anew("get", [job].into_iter()).await?.pop().flatten() else {
        return Ok(None);
    };
    let row = link.rows("get", &[(queue, job)]).await?.pop().flatten();
    row.map(row::Row::record).transpose()
}

pub(crate) async fn jobs(link: &Link, filter: &JobFilter) -> Result<Page<Job>> {
    let now = link.now("jobs").await?;
    let list = List {
        operation: "jobs",
        index: "live",
        queues: link.select("jobs", &filter.queues).await?,
        direction: filter.direction,
    };
    let matching = |record| match record {
        Record::Live(job) => Some(job).filter(|job| filter.matches(job, now)),
        Record::Finished(_) => None,
    };
    page(link, &list, filter.after, filter.limit.as_usize(), matching, |job| job.id).await
}

pub(crate) async fn history(link: &Link, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
    let list = List {
        operation: "history",
        index: "history",
        queues: link.select("history", &filter.queues).await?,
        direction: filter.direction,
    };
    let matching = |record| match record {
        Record::Live(_) => None,
        Record::Finished(job) => Some(job).filter(|job| filter.matches(job)),
    };
    page(link, &list, filter.after, filter.limit.as_usize(), matching, |job| job.id).await
}

pub(crate) async fn receipts(link: &Link, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
    let queues = link.locate_anew("receipts", receipts.iter().map(|receipt| receipt.job)).await?;
    let pairs = receipts.iter().zip(queues).filter_map(|(receipt, queue)| Some((queue?, receipt.job)));
    let places: Vec<(QueueName, JobId)> = pairs.collect();
    let rows = link.rows("receipts", &places).await?;
    let mut records = std::collections::HashMap::new();
    for row in rows.into_iter().flatten() {
        let record = row.record()?;
        records.insert(record.id(), record);
    }
    Ok(receipts.iter().map(|receipt| ReceiptStatus::of(*receipt, records.get(&receipt.job))).collect())
}

/// The ids of an index over several queues.
pub(crate) struct List {
    pub(crate) operation: &'static str,
    pub(crate) index: &'static str,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) direction: Direction,
}

impl List {
    /// The next ids after `after`, about so many, each with its queue; none if there are no more.
    pub(crate) async fn next(
        &self,
        link: &Link,
        after: Option<JobId>,
        wanted: usize,
    ) -> Result<Vec<(QueueName, JobId)>> {
        if self.queues.is_empty() {
            return Ok(Vec::new());
        }
        let each = (2 * wanted / self.queues.len()).clamp(IDS, wanted.max(IDS));
        let shards = self.queues.iter().enumerate();
        let shards = grouped(shards.map(|(place, queue)| (link.layout.shard(queue), place)));
        let from = after.map(|after| format!("({}", id::text(after)));
        let asked = shards.into_values().map(|places| async {
            let found = self.ask(link, &places, from.as_deref(), each).await?;
            Ok((places, found))
        });
        let mut found = vec![Vec::new(); self.queues.len()];
        for (places, ids) in join_all(asked).await.into_iter().collect::<Result<Vec<_>>>()? {
            for (place, ids) in places.into_iter().zip(ids) {
                found[place] = ids;
            }
        }
        Ok(self.merge(found, each))
    }

    /// The next ids of some of the queues, which are in one shard.
    async fn ask(
        &self,
        link: &Link,
        places: &[usize],
        from: Option<&str>,
        each: usize,
    ) -> Result<Vec<Vec<String>>> {
        let mut pipeline = redis::pipe();
        for place in places {
            let key = format!("{}:{}", link.layout.queue(&self.queues[*place]), self.index);
            let command = pipeline.cmd("ZRANGE").arg(key);
            match self.direction {
                Direction::OldestFirst => command.arg(from.unwrap_or("-")).arg("+").arg("BYLEX"),
                _ => command.arg(from.unwrap_or("+")).arg("-").arg("BYLEX").arg("REV"),
            };
            pipeline.arg("LIMIT").arg(0).arg(each);
        }
        link.send_all(self.operation, Effect::Read, &pipeline).await
    }

    /// The ids of all queues in order, up to where a queue may have more than it has told.
    fn merge(&self, found: Vec<Vec<String>>, each: usize) -> Vec<(QueueName, JobId)> {
        let full = found.iter().filter(|ids| ids.len() == each).filter_map(|ids| id::parse(ids.last()?));
        let forward = self.direction == Direction::OldestFirst;
        let horizon = if forward { full.min() } else { full.max() };
        let ids =
            self.queues.iter().zip(found).flat_map(|(queue, ids)| ids.into_iter().map(move |id| (id, queue)));
        let sorted: BTreeSet<(JobId, &QueueName)> =
            ids.filter_map(|(text, queue)| Some((id::parse(&text)?, queue))).collect();
        let within = |id: JobId| horizon.is_none_or(|end| id == end || self.direction.is_after(id, end));
        let mut merged: Vec<_> =
            sorted.into_iter().filter(|(id, _)| within(*id)).map(|(id, queue)| (queue.clone(), id)).collect();
        if !forward {
            merged.reverse();
        }
        merged
    }
}

async fn page<T>(
    link: &Link,
    list: &List,
    mut after: Option<JobId>,
    limit: usize,
    matching: impl Fn(Record) -> Option<T>,
    id: impl Fn(&T) -> JobId,
) -> Result<Page<T>> {
    let mut items = Vec::new();
    while items.len() <= limit {
        let places = list.next(link, after, limit + 1 - items.len()).await?;
        let Some((_, last)) = places.last() else { break };
        after = Some(*last);
        let rows = link.rows(list.operation, &places).await?;
        items.extend(
            rows.into_iter().flatten().filter_map(|row| row::readable(row.record())).filter_map(&matching),
        );
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(id);
    Ok(Page { items, next })
}
