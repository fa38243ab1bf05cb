//! Where jobs come from, and when it is worth to look there.

use std::time::Duration;

use leasehold_core::Queues;
use tokio::time::Instant;

/// Claims from one source that may be under way at once, while they come back full.
const FLIGHTS: usize = 4;
/// The shortest sleep after a look that found nothing although something was due, and how often it doubles.
const VAIN: Duration = Duration::from_millis(5);
const DOUBLINGS: u32 = 10;

/// Queues that are claimed from together.
pub(crate) struct Source {
    pub(crate) queues: Queues,
    pub(crate) weight: u32,
    /// How many of its jobs may run at once.
    pub(crate) concurrency: Option<usize>,
    pub(crate) running: usize,
    /// Slots that claims under way may fill.
    pub(crate) reserved: usize,
    flights: usize,
    /// Whether there may be something to claim.
    pub(crate) wanted: bool,
    /// Whether a hint came since the last claim was sent.
    hinted: bool,
    /// Whether the last claim brought as many jobs as were asked for.
    full: bool,
    /// Whether jobs were claimed since the source was last found empty: then it is worth to look again after them.
    worked: bool,
    /// Looks in a row that found nothing although the store had said that something is due.
    vain: u32,
    /// Whether the store has said that something is due.
    due: bool,
    /// When to ask again whether anything is due.
    pub(crate) poll_at: Option<Instant>,
    /// For turns by weight.
    pub(crate) credit: i64,
}

/// What to do after a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing: claim again when there is room, or wait for a hint or the end of the work.
    Go,
    /// Ask the store when there will be something.
    Ask,
    /// The store has said that something is due, and there was nothing to claim: a lease has passed.
    Reclaim,
}

impl Source {
    pub(crate) fn new(queues: Queues, weight: u32, concurrency: Option<usize>) -> Self {
        Self {
            queues,
            weight,
            concurrency,
            running: 0,
            reserved: 0,
            flights: 0,
            wanted: true,
            hinted: false,
            full: false,
            worked: false,
            vain: 0,
            due: false,
            poll_at: None,
            credit: 0,
        }
    }

    /// How many jobs may be claimed from here now.
    pub(crate) fn room(&self) -> usize {
        let flights = if self.full { FLIGHTS } else { 1 };
        if !self.wanted || self.flights >= flights {
            return 0;
        }
        self.concurrency.map_or(usize::MAX, |limit| limit.saturating_sub(self.running + self.reserved))
    }

    /// Somebody says that there is something. Any number of hints is one look.
    pub(crate) fn hint(&mut self) {
        self.wanted = true;
        self.hinted = true;
        self.vain = 0;
    }

    /// A claim of up to `asked` jobs is sent.
    pub(crate) fn claiming(&mut self, asked: usize) {
        self.flights += 1;
        self.reserved += asked;
        self.hinted = false;
        self.poll_at = None;
    }

    /// A claim has brought so many jobs.
    pub(crate) fn claimed(&mut self, asked: usize, jobs: usize) -> After {
        self.landed(asked);
        self.running += jobs;
        self.full = jobs >= asked;
        self.worked |= jobs > 0;
        self.wanted = self.full || self.hinted;
        if jobs > 0 {
            self.vain = 0;
            self.due = false;
        }
        match jobs {
            0 if self.wanted || self.flights > 0 => After::Go,
            0 if self.due => After::Reclaim,
            0 => After::Ask,
            _ => After::Go,
        }
    }

    /// A claim has failed.
    pub(crate) fn failed(&mut self, asked: usize) {
        self.landed(asked);
        self.full = false;
        self.wanted = true;
    }

    fn landed(&mut self, asked: usize) {
        self.flights -= 1;
        self.reserved -= asked;
    }

    /// Jobs of this source were settled: what waited behind them may be ready now.
    pub(crate) fn settled(&mut self) {
        if std::mem::take(&mut self.worked) {
            self.wanted = true;
        }
    }

    /// The store says how long it will be until something is due, if anything is.
    pub(crate) fn told(&mut self, wait: Option<Duration>, poll: Duration, now: Instant) {
        self.due = wait == Some(Duration::ZERO);
        if self.due && self.vain == 0 {
            self.wanted = true;
        } else if self.due {
            self.poll_at = Some(now + VAIN.saturating_mul(1 << self.vain.min(DOUBLINGS)).min(poll));
        } else {
            self.vain = 0;
            self.poll_at = Some(now + wait.map_or(poll, |wait| wait.min(poll)));
        }
    }

    /// A reclaim has ended. If it brought nothing, what is due is in somebody else's hands.
    pub(crate) fn reclaimed(&mut self, any: bool) -> After {
        self.due = false;
        if any {
            self.wanted = true;
            return After::Go;
        }
        self.vain += 1;
        After::Ask
    }

    /// When to look or ask next, if nothing else happens.
    pub(crate) fn is_asleep(&self) -> bool {
        !self.wanted && self.flights == 0 && self.poll_at.is_none()
    }
}
