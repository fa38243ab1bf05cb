//! Where jobs come from, and when it is worth to look there.

use std::time::Duration;

use leasehold_core::{Queues, StoreError};
use tokio::time::Instant;

use crate::call::later;
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
    /// Slots that claims under way may fill.
    pub(crate) reserved: usize,
    flights: usize,
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
    /// For turns by weight.
    pub(crate) credit: i64,
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
            flights: 0,
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
            credit: 0,
            outages,
            pause_until: None,
        }
    }

    /// How many jobs may be claimed from here now.
    pub(crate) fn room(&self, now: Instant) -> usize {
        let flights = if self.full { FLIGHTS } else { 1 };
        if !self.wanted || self.flights >= flights || self.is_paused(now) {
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
        self.deferred = false;
        self.poll_at = None;
    }

    /// A claim has brought so many jobs.
    pub(crate) fn claimed(&mut self, asked: usize, jobs: usize) -> After {
        self.landed(asked);
        self.outages.claim.over();
        self.pause_until = None;
        self.running += jobs;
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
    pub(crate) fn failed(&mut self, asked: usize, error: &StoreError, now: Instant) {
        self.landed(asked);
        self.full = false;
        self.wanted = true;
        self.pause_until = Some(now + self.outages.claim.failed(&with_causes(error)));
    }

    fn landed(&mut self, asked: usize) {
        self.flights -= 1;
        self.reserved -= asked;
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
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

    use super::*;

    const POLL: Duration = Duration::from_secs(1);
    /// Pauses of an outage are no longer.
    const PAUSE: Duration = Duration::from_secs(15);

    /// What can happen to a source.
    #[derive(Debug, Clone)]
    enum Event {
        Hint,
        /// The oldest claim under way brings this part of what was asked for, in tenths.
        Claimed(usize),
        ClaimFailed,
        /// The store says how many milliseconds it will be.
        Told(Option<u64>),
        Reclaimed(bool),
        NotTold,
        Ended,
        Settled,
        Pass(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            Just(Event::Hint),
            (0..=10_usize).prop_map(Event::Claimed),
            Just(Event::Claimed(0)),
            Just(Event::ClaimFailed),
            prop_oneof![Just(None), Just(Some(0)), (1..5000_u64).prop_map(Some)].prop_map(Event::Told),
            any::<bool>().prop_map(Event::Reclaimed),
            Just(Event::NotTold),
            Just(Event::Ended),
            Just(Event::Settled),
            (0..3000_u64).prop_map(Event::Pass),
        ];
        proptest::collection::vec(event, 1..200)
    }

    /// A source with the questions that are under way, as the dispatcher has them.
    struct Driven {
        source: Source,
        now: Instant,
        claims: Vec<usize>,
        question: Option<After>,
        running: usize,
        unsettled: usize,
    }

    impl Driven {
        fn new() -> Self {
            let queues = Queues::named(["q"]).unwrap();
            let source = Source::new(queues, 1, Some(20), Outages::new());
            let (claims, question) = (Vec::new(), None);
            Self { source, now: Instant::now(), claims, question, running: 0, unsettled: 0 }
        }

        /// One round of the dispatcher's loop.
        fn round(&mut self) {
            if self.source.is_to_ask(self.now) {
                self.ask(After::Ask);
            }
            while self.source.room(self.now) > 0 {
                let asked = self.source.room(self.now).min(10);
                self.source.claiming(asked);
                self.claims.push(asked);
            }
        }

        fn ask(&mut self, question: After) {
            assert_eq!(self.question, None, "one question at a time");
            self.source.asking();
            self.question = Some(question);
        }

        fn happen(&mut self, event: &Event) {
            let error = StoreError::unavailable("test", "no");
            match event {
                Event::Hint => self.source.hint(),
                Event::Claimed(tenths) if !self.claims.is_empty() => {
                    let asked = self.claims.remove(0);
                    let jobs = asked * tenths / 10;
                    self.running += jobs;
                    match self.source.claimed(asked, jobs) {
                        After::Go => {}
                        question => self.ask(question),
                    }
                }
                Event::ClaimFailed if !self.claims.is_empty() => {
                    let asked = self.claims.remove(0);
                    self.source.failed(asked, &error, self.now);
                }
                Event::Told(wait) if self.question == Some(After::Ask) => {
                    self.question = None;
                    self.source.told(wait.map(Duration::from_millis), POLL, self.now);
                }
                Event::Reclaimed(any) if self.question == Some(After::Reclaim) => {
                    self.question = None;
                    self.source.reclaimed(*any, POLL, self.now);
                }
                Event::NotTold if self.question.is_some() => {
                    self.question = None;
                    self.source.not_told(&error, self.now);
                }
                Event::Ended if self.running > 0 => {
                    (self.running, self.unsettled) = (self.running - 1, self.unsettled + 1);
                    self.source.ended();
                }
                Event::Settled if self.unsettled > 0 => {
                    let jobs = std::mem::take(&mut self.unsettled);
                    self.source.settled(jobs, self.now);
                }
                Event::Pass(millis) => self.now += Duration::from_millis(*millis),
                _ => {}
            }
        }
    }

    proptest! {
        /// Whatever happens: something is under way, or no room is left, or the source is looked at within a poll interval;
        /// within the pause, if it cannot be read.
        #[test]
        fn a_source_is_never_asleep_for_longer_than_the_poll_interval(events in events()) {
            let mut driven = Driven::new();
            for event in events {
                driven.happen(&event);
                driven.round();
                let next = driven.source.next_time(POLL, driven.now);
                if driven.claims.is_empty() && driven.question.is_none() && driven.running < 20 {
                    let paused = driven.source.outages.claim.is_on() || driven.source.outages.ask.is_on();
                    let longest = if paused { PAUSE } else { POLL };
                    let within = next.is_some_and(|next| next <= driven.now + longest);
                    assert!(within, "asleep until {next:?} at {:?} after {event:?}", driven.now);
                }
                // A time that has come and for which nothing is done would be a loop that does not wait.
                assert!(next.is_none_or(|next| next > driven.now), "awake at {:?} after {event:?}", driven.now);
            }
        }

        /// What is due is claimed within a poll interval if the store answers, however often others were faster.
        #[test]
        fn what_is_due_is_looked_for(vain in 0..40_usize) {
            let mut driven = Driven::new();
            driven.round();
            for _ in 0..vain {
                driven.happen(&Event::Claimed(0));
                driven.happen(&Event::Told(Some(0)));
                driven.happen(&Event::Reclaimed(false));
                driven.round();
                let start = driven.now;
                for _ in 0..3 {
                    let next = driven.source.next_time(POLL, driven.now);
                    driven.now = next.filter(|_| driven.claims.is_empty()).unwrap_or(driven.now);
                    driven.round();
                    driven.happen(&Event::Told(Some(0)));
                    driven.round();
                }
                assert!(!driven.claims.is_empty(), "not looked for");
                assert!(driven.now <= start + POLL, "not looked for within a poll interval");
            }
        }
    }
}
