//! All queues: by name, by whether something can be leased from them, and by when time changes them.
//!
//! A queue has a slot, a small number by which its jobs find it without comparing names. It is here only while it has
//! live jobs, dead letters or a token bucket that is not full: nothing is kept for idle queues.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Index, IndexMut};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_core::{EffectivePolicy, QueueName, QueuePrefix, Queues};

use crate::queue::Queue;

/// Where a queue is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(usize);

/// All queues.
#[derive(Default)]
pub(crate) struct Directory {
    names: BTreeMap<QueueName, Slot>,
    entries: Vec<Entry>,
    free: Vec<Slot>,
    /// The queues from which something can be leased now.
    claimable: BTreeMap<QueueName, Slot>,
    /// When time next changes which queue.
    timers: BTreeSet<(DateTime<Utc>, Slot)>,
    touched: Vec<Slot>,
}

struct Entry {
    queue: Queue,
    claimable: bool,
    timer: Option<DateTime<Utc>>,
    touched: bool,
    news: bool,
}

impl Directory {
    /// The queue with this name, if there is anything in it.
    pub(crate) fn find(&self, name: &QueueName) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// Makes room for a queue that is not here.
    pub(crate) fn add(&mut self, name: &QueueName, policy: Arc<EffectivePolicy>) -> Slot {
        let queue = Queue::new(name.clone(), policy);
        let entry = Entry { queue, claimable: false, timer: None, touched: false, news: false };
        let slot = self.free.pop().unwrap_or(Slot(self.entries.len()));
        match self.entries.get_mut(slot.0) {
            Some(unused) => *unused = entry,
            None => self.entries.push(entry),
        }
        self.names.insert(name.clone(), slot);
        slot
    }

    /// Forgets a queue that is empty.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.set_claimable(slot, false);
        self.set_timer(slot, None);
        self.names.remove(&self.entries[slot.0].queue.name);
        self.free.push(slot);
        if self.names.is_empty() {
            (self.entries, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Those of these queues that are here, by name.
    pub(crate) fn among(&self, queues: &Queues) -> Vec<Slot> {
        match queues {
            Queues::Named(names) => names.iter().filter_map(|name| self.find(name)).collect(),
            Queues::Matching(prefix) => starting(&self.names, prefix).map(|(_, slot)| *slot).collect(),
        }
    }

    /// Those of these queues from which something can be leased now. Looks at the shorter of the two lists.
    pub(crate) fn claimable_among(&self, names: &[QueueName]) -> Vec<Slot> {
        if names.len() <= self.claimable.len() {
            let slots = names.iter().filter_map(|name| self.find(name));
            return slots.filter(|slot| self.is_claimable(*slot)).collect();
        }
        let claimable = self.claimable.iter().filter(|(name, _)| names.binary_search(name).is_ok());
        claimable.map(|(_, slot)| *slot).collect()
    }

    /// The queue whose turn it is: the first that something can be leased from after `last`, or else from the start.
    pub(crate) fn next_turn(&self, prefix: &QueuePrefix, last: Option<&QueueName>) -> Option<Slot> {
        let after = last.and_then(|last| {
            let later = (Bound::Excluded(last.as_str()), Bound::Unbounded);
            self.claimable.range::<str, _>(later).next().filter(|(name, _)| prefix.matches(name))
        });
        let turn = after.or_else(|| starting(&self.claimable, prefix).next());
        turn.map(|(_, slot)| *slot)
    }

    /// Whether something can be leased from the queue now.
    pub(crate) fn is_claimable(&self, slot: Slot) -> bool {
        self.entries[slot.0].claimable
    }

    /// Says whether something can be leased from the queue now.
    pub(crate) fn set_claimable(&mut self, slot: Slot, claimable: bool) {
        let entry = &mut self.entries[slot.0];
        if entry.claimable != claimable {
            entry.claimable = claimable;
            match claimable {
                true => self.claimable.insert(entry.queue.name.clone(), slot),
                false => self.claimable.remove(&entry.queue.name),
            };
        }
    }

    /// Says when time next changes the queue.
    pub(crate) fn set_timer(&mut self, slot: Slot, timer: Option<DateTime<Utc>>) {
        let entry = &mut self.entries[slot.0];
        if entry.timer != timer {
            let before = std::mem::replace(&mut entry.timer, timer);
            before.map(|before| self.timers.remove(&(before, slot)));
            timer.map(|timer| self.timers.insert((timer, slot)));
        }
    }

    /// A queue that time has changed, once.
    pub(crate) fn next_due(&mut self, now: DateTime<Utc>) -> Option<Slot> {
        let (_, slot) = self.timers.first().copied().filter(|(timer, _)| *timer <= now)?;
        self.set_timer(slot, None);
        Some(slot)
    }

    /// Remembers that the operation under way has changed the queue.
    pub(crate) fn touch(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0];
        if !entry.touched {
            entry.touched = true;
            self.touched.push(slot);
        }
    }

    /// The same, and that it is worth to look at the queue.
    pub(crate) fn touch_with_news(&mut self, slot: Slot) {
        self.touch(slot);
        self.entries[slot.0].news = true;
    }

    /// The next queue that the operation has changed, and whether it is worth to look at.
    pub(crate) fn next_touched(&mut self) -> Option<(Slot, bool)> {
        let slot = self.touched.pop()?;
        let entry = &mut self.entries[slot.0];
        entry.touched = false;
        Some((slot, std::mem::take(&mut entry.news)))
    }
}

impl Index<Slot> for Directory {
    type Output = Queue;
    fn index(&self, slot: Slot) -> &Queue {
        &self.entries[slot.0].queue
    }
}

impl IndexMut<Slot> for Directory {
    fn index_mut(&mut self, slot: Slot) -> &mut Queue {
        &mut self.entries[slot.0].queue
    }
}

fn starting<'a>(
    names: &'a BTreeMap<QueueName, Slot>,
    prefix: &'a QueuePrefix,
) -> impl Iterator<Item = (&'a QueueName, &'a Slot)> {
    let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    names.range::<str, _>(from).take_while(|(name, _)| prefix.matches(name))
}

#[cfg(test)]
mod tests {
    use leasehold_core::{BatchSize, Dequeue, NewJob, Prune, QueuePolicy, Queues, RateLimit, Store, Verdict};

    use crate::{ManualClock, MemoryStore};

    fn queues(store: &MemoryStore) -> usize {
        store.shared.run(|state| state.queues.names.len())
    }

    /// Leases everything and gives each job this verdict.
    async fn drain(store: &MemoryStore, verdict: Verdict) {
        let request = Dequeue::new(Queues::all(), "worker").unwrap().limit(100).unwrap();
        let jobs = store.dequeue(&request).await.unwrap();
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), verdict.clone())).collect();
        store.settle(&items).await.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_kept_for_idle_queues() {
        let store = MemoryStore::new();
        let job = |number: usize| NewJob::builder(format!("q{number}"), "test").build().unwrap();
        let jobs: Vec<_> = (0..50).map(job).collect();
        store.enqueue(&jobs).await.unwrap();
        assert_eq!(queues(&store), 50);
        drain(&store, Verdict::done()).await;
        assert_eq!(queues(&store), 0);

        store.enqueue(&jobs).await.unwrap();
        drain(&store, Verdict::dead("no")).await;
        assert_eq!(queues(&store), 50);
        store.prune(&Prune::older_than(std::time::Duration::ZERO, BatchSize::MAX).unwrap()).await.unwrap();
        assert_eq!(queues(&store), 0);
        store.shared.run(|state| {
            assert!(state.queues.entries.is_empty() && state.queues.free.is_empty());
            assert!(state.queues.claimable.is_empty() && state.queues.timers.is_empty());
        });
    }

    #[tokio::test]
    async fn a_bucket_is_kept_until_it_is_full() {
        let clock = ManualClock::new(chrono::Utc::now());
        let store = MemoryStore::with_clock(clock.clone());
        let policy = QueuePolicy { rate: Some(RateLimit::new(1.0, 3).unwrap()), ..QueuePolicy::default() };
        store.set_policy(&"q*".parse().unwrap(), &policy).await.unwrap();
        store.enqueue(&[NewJob::builder("q1", "test").build().unwrap()]).await.unwrap();
        drain(&store, Verdict::done()).await;
        assert_eq!(queues(&store), 1);
        clock.advance(std::time::Duration::from_secs(1));
        assert_eq!(queues(&store), 0);
    }
}
