//! When the writer looks for what other connections have committed.
//!
//! A commit is written to the log, then put on the disk, and counts only then; the system tells of the first of these. So after each such event
//! the writer looks at once and again and again, at pauses that grow with the time since. Where files cannot be watched, it goes on so for as
//! long as anything listens.

use std::time::{Duration, Instant};

/// The first pause after an event, and after one of many that come right after each other.
const SHORT: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));
/// Events that come faster than this are many.
const MANY: Duration = Duration::from_millis(5);
/// A pause is this part of the time since the event.
const PART: u32 = 4;
/// For how long after an event a commit may still come. One that takes longer is found by polling jobs.
const WINDOW: Duration = Duration::from_secs(1);
/// The longest pause where files are not watched.
const LONGEST: Duration = Duration::from_millis(50);

/// How what others do is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Not at all.
    None,
    /// The system tells of it.
    Events,
    /// By looking all the time.
    Polling,
}

/// When to look.
pub(crate) struct Looks {
    source: Source,
    next: Option<Instant>,
    /// When something was last written.
    event: Instant,
    first: Duration,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self { source: Source::None, next: None, event: Instant::now(), first: SHORT.0 }
    }

    pub(crate) fn set(&mut self, source: Source) {
        self.source = source;
    }

    /// When to look next, if at all.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Something was written, perhaps by this very connection.
    pub(crate) fn event(&mut self, now: Instant) {
        let is_one_of_many = now.saturating_duration_since(self.event) < MANY;
        self.first = if is_one_of_many { (self.first * 2).min(SHORT.1) } else { SHORT.0 };
        self.event = now;
        self.next = (self.source != Source::None).then_some(now);
    }

    /// A look was made, and found a commit of another connection or not.
    pub(crate) fn looked(&mut self, now: Instant, found: bool) {
        if found && self.source == Source::Polling {
            self.event(now);
        }
        let since = now.saturating_duration_since(self.event);
        let pause = (since / PART).max(self.first);
        self.next = match self.source {
            Source::None => None,
            Source::Events => (since < WINDOW).then(|| now + pause),
            Source::Polling => Some(now + pause.min(LONGEST)),
        };
    }

    /// Nothing listens any more.
    pub(crate) fn stop(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LONGEST, Looks, Source, WINDOW};

    /// The pauses between looks after one event, up to that long, if none finds anything.
    fn pauses(source: Source, until: Duration) -> Vec<Duration> {
        let start = Instant::now() + Duration::from_secs(60);
        let mut looks = Looks::new();
        looks.set(source);
        looks.event(start);
        let (mut now, mut pauses) = (start, Vec::new());
        while looks.is_due(now) && now < start + until {
            looks.looked(now, false);
            let Some(next) = looks.next() else { break };
            pauses.push(next - now);
            now = next;
        }
        pauses
    }

    #[test]
    fn looks_after_an_event_are_few_and_end() {
        let pauses = pauses(Source::Events, Duration::from_secs(3600));
        assert!(pauses.len() < 50, "{} looks", pauses.len());
        assert_eq!(pauses[0], Duration::from_micros(100));
        assert!(pauses.is_sorted() && pauses.iter().sum::<Duration>() >= WINDOW, "{pauses:?}");
    }

    #[test]
    fn polling_goes_on_at_longer_and_longer_pauses() {
        let pauses = pauses(Source::Polling, Duration::from_secs(60));
        assert!(pauses.is_sorted() && pauses.last() == Some(&LONGEST));
        assert!(pauses.len() < 1250, "{} looks", pauses.len());
    }

    #[test]
    fn many_events_make_the_first_pause_longer_and_one_after_a_while_short_again() {
        let mut looks = Looks::new();
        looks.set(Source::Events);
        let mut now = Instant::now() + Duration::from_secs(60);
        let mut first = |after: Duration| {
            now += after;
            looks.event(now);
            looks.looked(now, true);
            looks.next().map(|next| next - now)
        };
        let firsts: Vec<_> = (0..8).map(|_| first(Duration::from_millis(1))).collect();
        assert_eq!(firsts.last(), Some(&Some(Duration::from_millis(2))), "{firsts:?}");
        assert_eq!(first(Duration::from_millis(20)), Some(Duration::from_micros(100)));
    }

    #[test]
    fn without_a_source_nothing_is_looked_for() {
        let mut looks = Looks::new();
        looks.event(Instant::now());
        assert_eq!(looks.next(), None);
    }
}
