//! Looking: one job, lists of jobs, receipts.

use futures_util::future::join_all;
use leasehold_core::{
    Direction, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueName, Queues, Receipt,
    ReceiptStatus, Record, Result,
};

use crate::error::Effect;
use crate::id;
use crate::keys::Shard;
use crate::link::{Link, grouped, queue_name};
use crate::row;
use crate::script::scripts;

/// How many jobs are looked at in one step: first, and at most.
const LOOKED: (usize, usize) = (16, 1000);

/// How many queues one script asks for their next job: it does no more for most of them.
const QUEUES_PER_PAGE: usize = 2000;

pub(crate) async fn get(link: &Link, job: JobId) -> Result<Option<Record>> {
    let Some(queue) = link.locate_anew("get", [job].into_iter()).await?.pop().flatten() else {
        return Ok(None);
    };
    let row = link.rows("get", &[(queue, job)]).await?.pop().flatten();
    row.map(row::Row::record).transpose()
}

pub(crate) async fn jobs(link: &Link, filter: &JobFilter) -> Result<Page<Job>> {
    let now = link.now("jobs").await?;
    let list =
        List { operation: "jobs", index: "live", queues: filter.queues.clone(), direction: filter.direction };
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
        queues: filter.queues.clone(),
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
    pub(crate) queues: Queues,
    pub(crate) direction: Direction,
}

/// The next jobs of some queues, each with its queue.
#[derive(Clone)]
struct Found {
    jobs: Vec<(JobId, QueueName)>,
    /// The last of them, if there may be more.
    end: Option<JobId>,
}

impl List {
    /// The next ids after `after`, about so many, each with its queue; none if there are no more. Each queue is asked for its first one, by a
    /// script for many queues; of the others only those are read that come first.
    pub(crate) async fn next(
        &self,
        link: &Link,
        after: Option<JobId>,
        wanted: usize,
    ) -> Result<Vec<(QueueName, JobId)>> {
        let found = match &self.queues {
            Queues::Named(names) => {
                let shards = grouped(names.iter().map(|name| (link.layout.shard(name), name)));
                let groups = shards.iter().flat_map(|(shard, names)| {
                    names.chunks(QUEUES_PER_PAGE).map(move |names| (*shard, names))
                });
                let asked = groups.map(|(shard, names)| async move {
                    let (found, _) = self.ask(link, shard, after, wanted, Among::Named(names)).await?;
                    Ok(vec![found])
                });
                join_all(asked).await
            }
            Queues::Matching(prefix) => {
                let asked = link.layout.shards().map(|shard| async move {
                    let (mut all, mut last) = (Vec::new(), String::new());
                    loop {
                        let among = Among::Matching(prefix.as_str(), &last);
                        let (found, more) = self.ask(link, shard, after, wanted, among).await?;
                        all.push(found);
                        if more.is_empty() {
                            return Ok(all);
                        }
                        last = more;
                    }
                });
                join_all(asked).await
            }
        };
        Ok(self.merge(found.into_iter().collect::<Result<Vec<_>>>()?.concat()))
    }

    async fn ask(
        &self,
        link: &Link,
        shard: Shard,
        after: Option<JobId>,
        wanted: usize,
        among: Among<'_>,
    ) -> Result<(Found, String)> {
        let direction = if self.direction == Direction::OldestFirst { "forward" } else { "backward" };
        let (found, more): (Vec<(String, String)>, String) = link
            .run(self.operation, Effect::Read, (&scripts::page, shard), |_, call| {
                call.arg(self.index).arg(direction).arg(after.map(id::text).unwrap_or_default()).arg(wanted);
                match among {
                    Among::Named(names) => {
                        for name in names {
                            call.key(link.layout.queue(name));
                        }
                    }
                    Among::Matching(prefix, last) => {
                        call.arg(prefix).arg(last).arg(QUEUES_PER_PAGE);
                    }
                }
            })
            .await?;
        let end = found.last().filter(|_| found.len() == wanted).and_then(|(_, text)| id::parse(text));
        let jobs = found.into_iter().filter_map(|(name, text)| Some((id::parse(&text)?, queue_name(name)?)));
        Ok((Found { jobs: jobs.collect(), end }, more))
    }

    /// What was found, in order, up to where there may be more than was told.
    fn merge(&self, found: Vec<Found>) -> Vec<(QueueName, JobId)> {
        let forward = self.direction == Direction::OldestFirst;
        let ends = found.iter().filter_map(|found| found.end);
        let horizon = if forward { ends.min() } else { ends.max() };
        let within = |id: JobId| horizon.is_none_or(|end| id == end || self.direction.is_after(id, end));
        let mut merged: Vec<_> = found.into_iter().flat_map(|found| found.jobs).collect();
        merged.retain(|(id, _)| within(*id));
        merged.sort_unstable();
        merged.dedup_by_key(|(id, _)| *id);
        if !forward {
            merged.reverse();
        }
        merged.into_iter().map(|(id, queue)| (queue, id)).collect()
    }
}

/// Which queues of a shard a script looks at.
#[derive(Clone, Copy)]
enum Among<'a> {
    Named(&'a [&'a QueueName]),
    /// Those with a prefix, after a name.
    Matching(&'a str, &'a str),
}

async fn page<T>(
    link: &Link,
    list: &List,
    mut after: Option<JobId>,
    limit: usize,
    matching: impl Fn(Record) -> Option<T>,
    id: impl Fn(&T) -> JobId,
) -> Result<Page<T>> {
    // Where few match, more and more are looked at in one step.
    let (mut items, mut size) = (Vec::new(), (limit + 1).max(LOOKED.0));
    while items.len() <= limit {
        let places = list.next(link, after, size).await?;
        size = (2 * size).min(LOOKED.1.max(limit + 1));
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
