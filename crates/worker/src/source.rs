//! Where jobs come from, and when it is worth to look there.

use std::time::Duration;

use leasehold_core::{Queues, StoreError};
use tokio::time::Instant;

use crate::call::later;
use crate::dispatch::Position;
use crate::outage::{Outage, with_causes};

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
    running: usize,
    /// Jobs that have ended and are not settled yet.
    unsettled: usize,
    /// Slots that are kept free for the answers to claims under way.
    pub(crate) reserved: usize,
    /// Slots that claims under way may fill if they are free then.
    unreserved: usize,
    flights: usize,
    /// Whether the last claim failed or took long: no slots are kept free for the next.
    suspect: bool,
    /// Whether there may be something to claim.
    pub(crate) wanted: bool,
    /// Whether a hint came since the last claim was sent.
    hinted: bool,
    /// Whether the last claim brought as many jobs as were asked for.
    full: bool,
    /// Whether the last claim brought none: then it is enough to ask.
    empty: bool,
    /// Whether jobs were claimed since the source was last found empty: then it is worth to look again after them.
    worked: bool,
    /// Whether the store is to be asked when what has ended is settled, rather than now and then again.
    deferred: bool,
    /// Looks in a row that found nothing although the store had said that something is due.
    vain: u32,
    /// Whether the store has said that something is due.
    due: bool,
    /// Whether the store is being asked when something will be due, or takes away what is.
    asking: bool,
    /// Whether the answer to that will be out of date.
    ask_again: bool,
    /// When to ask again whether anything is due.
    pub(crate) poll_at: Option<Instant>,
    /// For shares by weight.
    pub(crate) position: Position,
    outages: Outages,
    /// Nothing is asked of the store before. Each source has its own, so that one that cannot be read holds up no other.
    pause_until: Option<Instant>,
}

/// Outages of the two sorts of questions: that one is answered says nothing about the other.
#[derive(Clone)]
pub(crate) struct Outages {
    claim: Outage,
    ask: Outage,
}

impl Outages {
    pub(crate) fn new() -> Self {
        Self { claim: Outage::new("claim"), ask: Outage::new("look for work") }
    }
}

/// What a claim has brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brought {
    pub(crate) asked: usize,
    pub(crate) jobs: usize,
    /// Those of them that are started.
    pub(crate) started: usize,
    /// Whether the answer took so long that the next one may hang.
    pub(crate) late: bool,
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
    pub(crate) fn new(queues: Queues, weight: u32, concurrency: Option<usize>, outages: Outages) -> Self {
        Self {
            queues,
            weight,
            concurrency,
            running: 0,
            unsettled: 0,
            reserved: 0,
            unreserved: 0,
            flights: 0,
            suspect: false,
            wanted: true,
            hinted: false,
            full: false,
            empty: false,
            worked: false,
            deferred: false,
            vain: 0,
            due: false,
            asking: false,
            ask_again: false,
            poll_at: None,
            position: Position::default(),
            outages,
            pause_until: None,
        }
    }

    /// How many jobs may be claimed from here now.
    pub(crate) fn room(&self, now: Instant) -> usize {
        let flights = if self.full && !self.suspect { FLIGHTS } else { 1 };
        if !self.wanted || self.flights >= flights || self.is_paused(now) {
            return 0;
        }
        let taken = self.running + self.reserved + self.unreserved;
        self.concurrency.map_or(usize::MAX, |limit| limit.saturating_sub(taken))
    }

    /// Whether its claims may hang: then they ask for one job, and no slot waits for it.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// There may be something to claim. Any number of hints is one look.
    pub(crate) fn hint(&mut self) {
        self.wanted = true;
        self.hinted = true;
        self.vain = 0;
    }

    /// A claim of up to `asked` jobs is sent. Whether so many slots are kept free for the answer.
    pub(crate) fn claiming(&mut self, asked: usize) -> bool {
        self.flights += 1;
        match self.suspect {
            true => self.unreserved += asked,
            false => self.reserved += asked,
        }
        self.hinted = false;
        self.deferred = false;
        self.poll_at = None;
        !self.suspect
    }

    /// A claim is under way for so long that no slots are kept free for its answer any more.
    pub(crate) fn lapsed(&mut self, asked: usize) {
        self.reserved -= asked;
        self.unreserved += asked;
        self.suspect = true;
    }

    /// A claim was answered, for which slots were kept free or not.
    pub(crate) fn landed(&mut self, asked: usize, firm: bool) {
        self.flights -= 1;
        match firm {
            true => self.reserved -= asked,
            false => self.unreserved -= asked,
        }
    }

    /// A claim has brought this. It has [landed](Self::landed).
    pub(crate) fn claimed(&mut self, brought: Brought) -> After {
        let Brought { asked, jobs, started, late } = brought;
        self.outages.claim.over();
        self.pause_until = None;
        self.suspect = late;
        self.position.refund(asked.saturating_sub(jobs), self.weight);
        self.running += started;
        self.full = jobs >= asked;
        self.empty = jobs == 0;
        self.worked |= jobs > 0;
        self.wanted = self.full || self.hinted;
        if jobs > 0 {
            self.vain = 0;
            self.due = false;
        }
        match jobs {
            0 if self.wanted || self.flights > 0 || self.asking => After::Go,
            0 if self.due => After::Reclaim,
            0 if self.running == 0 && self.unsettled > 0 => {
                self.deferred = true;
                After::Go
            }
            0 => After::Ask,
            _ => After::Go,
        }
    }

    /// A claim has failed.
    pub(crate) fn failed(&mut self, asked: usize, firm: bool, error: &StoreError, now: Instant) {
        self.landed(asked, firm);
        self.position.refund(asked, self.weight);
        self.suspect = true;
        self.full = false;
        self.wanted = true;
        self.pause_until = Some(now + self.outages.claim.failed(&with_causes(error)));
    }

    /// Jobs that were not even started are given back.
    pub(crate) fn put_back(&mut self, jobs: usize) {
        self.unsettled += jobs;
    }

    /// The handler of one of its jobs has ended.
    pub(crate) fn ended(&mut self) {
        self.running -= 1;
        self.unsettled += 1;
    }

    /// So many of its jobs were settled: what waited behind them may be ready now.
    pub(crate) fn settled(&mut self, jobs: usize, now: Instant) {
        self.unsettled -= jobs;
        if self.deferred {
            if self.unsettled == 0 && !self.asking {
                (self.deferred, self.worked) = (false, false);
                self.poll_at = Some(now);
            }
        } else if std::mem::take(&mut self.worked) {
            match (self.empty, self.asking) {
                (true, false) => self.poll_at = Some(now),
                (true, true) => self.ask_again = true,
                (false, _) => self.wanted = true,
            }
        }
    }

    /// Whether it is time to ask when something will be due. If that was not answered, it is time to look.
    pub(crate) fn is_to_ask(&mut self, now: Instant) -> bool {
        if self.is_paused(now) || self.poll_at.is_none_or(|at| now < at) {
            return false;
        }
        self.poll_at = None;
        self.wanted |= self.outages.ask.is_on();
        !self.wanted
    }

    /// The store is asked when something will be due, or takes away what is.
    pub(crate) fn asking(&mut self) {
        self.asking = true;
        self.ask_again = false;
        self.poll_at = None;
    }

    /// That has failed.
    pub(crate) fn not_told(&mut self, error: &StoreError, now: Instant) {
        self.asking = false;
        self.poll_at = Some(now + self.outages.ask.failed(&with_causes(error)));
    }

    /// The store says how long it will be until something is due, if anything is.
    pub(crate) fn told(&mut self, wait: Option<Duration>, poll: Duration, now: Instant) {
        self.asking = false;
        self.outages.ask.over();
        self.due = wait == Some(Duration::ZERO);
        if self.due {
            self.wanted = true;
        } else {
            self.vain = 0;
            let wait = wait.map_or(poll, |wait| wait.min(poll));
            self.poll_at = Some(if self.ask_again { now } else { later(now, wait) });
        }
    }

    /// A reclaim has ended. If it brought nothing, what is due is in somebody else's hands: he is given a moment.
    pub(crate) fn reclaimed(&mut self, any: bool, poll: Duration, now: Instant) {
        self.asking = false;
        self.outages.ask.over();
        self.due = false;
        if any {
            self.wanted = true;
        } else {
            let moment = VAIN.saturating_mul(1 << self.vain.min(DOUBLINGS));
            self.vain = self.vain.saturating_add(1);
            self.poll_at = Some(if self.ask_again { now } else { later(now, moment.min(poll)) });
        }
    }

    /// When to look or ask next, if nothing else happens.
    pub(crate) fn next_time(&mut self, poll: Duration, now: Instant) -> Option<Instant> {
        if !self.wanted && self.flights == 0 && !self.asking && self.poll_at.is_none() {
            self.poll_at = Some(later(now, poll));
        }
        self.pause_until.filter(|until| now < *until).or(self.poll_at)
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.pause_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests;
