//! What holds for a source, whatever happens to it.

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
    /// The oldest claim under way takes long.
    Lapse,
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
        Just(Event::Lapse),
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
    claims: Vec<(usize, bool)>,
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
            let most = if self.source.is_suspect() { 1 } else { 10 };
            let asked = self.source.room(self.now).min(most);
            let firm = self.source.claiming(asked);
            self.claims.push((asked, firm));
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
                let (asked, firm) = self.claims.remove(0);
                let jobs = asked * tenths / 10;
                self.running += jobs;
                self.source.landed(asked, firm);
                match self.source.claimed(Brought { asked, jobs, started: jobs, late: !firm }) {
                    After::Go => {}
                    question => self.ask(question),
                }
            }
            Event::ClaimFailed if !self.claims.is_empty() => {
                let (asked, firm) = self.claims.remove(0);
                self.source.failed(asked, firm, &error, self.now);
            }
            Event::Lapse => {
                if let Some((asked, firm)) = self.claims.first_mut()
                    && std::mem::take(firm)
                {
                    self.source.lapsed(*asked);
                }
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

#[test]
fn a_source_whose_claim_failed_is_suspect() {
    let queues = Queues::named(["q"]).unwrap();
    let mut source = Source::new(queues, 1, None, Outages::new());
    assert!(!source.is_suspect());
    let firm = source.claiming(1);
    let error = StoreError::unavailable("dequeue", "gone".to_owned());
    source.failed(1, firm, &error, Instant::now());
    assert!(source.is_suspect());
}

#[test]
fn a_pause_ends_at_its_very_moment() {
    let queues = Queues::named(["q"]).unwrap();
    let mut source = Source::new(queues, 1, Some(3), Outages::new());
    let (now, moment) = (Instant::now(), Duration::from_millis(1));
    source.pause_until = Some(now);
    assert_eq!([now - moment, now, now + moment].map(|at| source.room(at)), [0, 3, 3]);
}

/// All of its jobs have ended, and a claim brought none: the store is asked when the last of them is settled.
#[test]
fn a_question_that_was_put_off_is_asked_when_all_is_settled() {
    let queues = Queues::named(["q"]).unwrap();
    let (mut source, now) = (Source::new(queues, 1, None, Outages::new()), Instant::now());
    let claim = |source: &mut Source, jobs| {
        let firm = source.claiming(2);
        source.landed(2, firm);
        source.claimed(Brought { asked: 2, jobs, started: jobs, late: false })
    };
    assert_eq!(claim(&mut source, 2), After::Go);
    source.ended();
    source.ended();
    assert_eq!(claim(&mut source, 0), After::Go);
    source.settled(1, now);
    assert_eq!(source.poll_at, None, "one is not settled");
    source.settled(1, now);
    assert_eq!(source.poll_at, Some(now));
}

/// A source with this limit, and a claim that brings so many of the jobs that it asks for.
fn source(concurrency: usize) -> Source {
    Source::new(Queues::named(["q"]).unwrap(), 1, Some(concurrency), Outages::new())
}

fn brought(asked: usize, jobs: usize) -> Brought {
    Brought { asked, jobs, started: jobs, late: false }
}

fn claim(source: &mut Source, asked: usize, jobs: usize) -> After {
    let firm = source.claiming(asked);
    source.landed(asked, firm);
    source.claimed(brought(asked, jobs))
}

#[test]
fn a_second_claim_is_sent_only_while_they_come_back_full() {
    let (mut source, now) = (source(20), Instant::now());
    source.claiming(2);
    assert_eq!(source.room(now), 0, "nothing is known of the first");
    source.landed(2, true);
    source.claimed(brought(2, 2));
    source.claiming(2);
    assert_eq!(source.room(now), 16, "it was full");
    source.lapsed(2);
    assert_eq!(source.room(now), 0, "it may hang");
}

/// Two claims are under way, of which one takes long.
#[test]
fn the_slots_of_a_claim_that_takes_long_are_still_counted_for_its_source() {
    let (mut source, now) = (source(20), Instant::now());
    claim(&mut source, 1, 1);
    source.claiming(2);
    source.claiming(3);
    source.lapsed(2);
    assert_eq!((source.reserved, source.unreserved), (3, 2));
    source.landed(3, true);
    source.claimed(brought(3, 3));
    // 1 and 3 are running, 2 may come.
    assert_eq!(source.room(now), 20 - 4 - 2);
    source.landed(2, false);
    source.claimed(brought(2, 2));
    assert_eq!((source.reserved, source.unreserved, source.room(now)), (0, 0, 20 - 6));
}

#[test]
fn after_a_claim_that_brought_none_the_store_is_asked_unless_something_else_is_under_way() {
    assert_eq!(claim(&mut source(5), 1, 0), After::Ask);
    // A hint came meanwhile: it is worth to claim again.
    let mut hinted = source(5);
    hinted.claiming(1);
    hinted.hint();
    hinted.landed(1, true);
    assert_eq!((hinted.claimed(brought(1, 0)), hinted.wanted), (After::Go, true));
    // Another question is under way.
    let mut asking = source(5);
    asking.asking();
    assert_eq!(claim(&mut asking, 1, 0), After::Go);
    // Jobs are running, and nothing waits for a verdict.
    let mut running = source(5);
    claim(&mut running, 2, 1);
    assert_eq!(claim(&mut running, 1, 0), After::Ask);
}

#[test]
fn when_work_is_settled_an_empty_source_is_asked_for_and_another_is_claimed_from() {
    for (jobs, wanted, is_to_ask) in [(0, false, true), (1, true, false)] {
        let (mut source, now) = (source(5), Instant::now());
        claim(&mut source, 2, 1);
        claim(&mut source, 2, jobs);
        source.ended();
        source.settled(1, now);
        assert_eq!((source.wanted, source.poll_at == Some(now)), (wanted, is_to_ask), "{jobs} jobs");
    }
}

#[test]
fn what_the_store_did_not_say_is_looked_for() {
    let (mut source, now) = (source(5), Instant::now());
    claim(&mut source, 1, 0);
    source.asking();
    source.not_told(&StoreError::unavailable("test", "no"), now);
    let at = source.poll_at.unwrap();
    assert!(!source.is_to_ask(at), "it is claimed from instead");
    assert!(source.wanted);
}

/// A time is set only if nothing else would wake the source.
#[test]
fn a_source_with_something_under_way_needs_no_time() {
    let now = Instant::now();
    let mut wanted = source(5);
    assert_eq!(wanted.next_time(POLL, now), None);
    let mut claiming = source(5);
    claiming.claiming(1);
    claiming.wanted = false;
    assert_eq!(claiming.next_time(POLL, now), None);
    let mut asking = source(5);
    claim(&mut asking, 1, 0);
    asking.asking();
    assert_eq!(asking.next_time(POLL, now), None);
    let mut waiting = source(5);
    claim(&mut waiting, 1, 0);
    assert_eq!(waiting.next_time(POLL, now), Some(now + POLL));
    let told = now + Duration::from_millis(5);
    waiting.poll_at = Some(told);
    assert_eq!(waiting.next_time(POLL, now), Some(told));
    // A pause comes first, while it lasts.
    let until = now + Duration::from_millis(1);
    waiting.pause_until = Some(until);
    assert_eq!(waiting.next_time(POLL, now), Some(until));
    assert_eq!(waiting.next_time(POLL, until), Some(told));
}

#[test]
fn while_another_claim_is_under_way_nothing_is_asked() {
    let mut source = source(20);
    claim(&mut source, 1, 1);
    source.claiming(1);
    source.claiming(1);
    source.landed(1, true);
    assert_eq!(source.claimed(brought(1, 0)), After::Go);
    source.landed(1, true);
    assert_eq!(source.claimed(brought(1, 0)), After::Ask);
}

#[test]
fn what_was_due_and_is_claimed_is_no_lease_that_has_passed() {
    let (mut source, now) = (source(20), Instant::now());
    claim(&mut source, 1, 0);
    source.asking();
    source.told(Some(Duration::ZERO), POLL, now);
    assert_eq!(claim(&mut source, 2, 1), After::Go);
    assert_eq!(claim(&mut source, 1, 0), After::Ask);
    source.asking();
    source.told(Some(Duration::ZERO), POLL, now);
    assert_eq!(claim(&mut source, 1, 0), After::Reclaim);
}

#[test]
fn only_after_work_it_is_worth_to_look_again() {
    let (mut source, now) = (source(20), Instant::now());
    claim(&mut source, 2, 1);
    source.ended();
    source.settled(1, now);
    assert!(source.wanted);
    assert_eq!(claim(&mut source, 2, 0), After::Ask);
    source.put_back(1);
    source.settled(1, now);
    assert_eq!((source.wanted, source.poll_at), (false, None));
}
