//! Rooms: many queues, each with messages that must be handled in order.

use std::collections::HashMap;
use std::time::SystemTime;

use leasehold_core::{JobKind, NewJob, QueueOrder, QueuePattern, QueuePolicy, Store};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Jobs that are enqueued at once.
const BATCH: usize = 1000;

/// A message in a room, with its place in the order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    /// From 1 on.
    pub place: u32,
}

impl JobKind for Message {
    const KIND: &'static str = "message";
}

/// The handling of one message, by the clock of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// In which queue.
    pub queue: String,
    /// Which message.
    pub place: u32,
    /// When its handler began, in nanoseconds.
    pub began: u128,
    /// When it ended.
    pub ended: u128,
}

impl Span {
    /// Now, as spans count it.
    pub fn now() -> u128 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
    }

    /// As a line of text.
    pub fn line(&self) -> String {
        format!("{} {} {} {}", self.queue, self.place, self.began, self.ended)
    }

    /// From such a line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (queue, place) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Self { queue, place, began: words.next()?.parse().ok()?, ended: words.next()?.parse().ok()? })
    }
}

/// Says that queues of this pattern are handled one job after the other, in order.
pub async fn fifo(store: &dyn Store, pattern: &str) -> Result {
    let policy = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
    Ok(store.set_policy(&pattern.parse::<QueuePattern>()?, &policy).await?)
}

/// Puts messages 1, 2, 3 and so on into each of these queues: first the first of all, then the second of all.
pub async fn fill(store: &dyn Store, queues: &[String], messages: u32) -> Result {
    let mut batch = Vec::with_capacity(BATCH);
    for place in 1..=messages {
        for queue in queues {
            batch.push(NewJob::builder(queue.as_str(), Message::KIND).payload(&Message { place }).build()?);
            if batch.len() == BATCH {
                store.enqueue(&batch).await?;
                batch.clear();
            }
        }
    }
    store.enqueue(&batch).await?;
    Ok(())
}

/// Checks that in each of these queues so many messages were handled, each once, in order, and one after the other.
pub fn in_order(spans: &[Span], queues: &[String], messages: u32) -> Result {
    let mut handled: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans {
        handled.entry(&span.queue).or_default().push(span);
    }
    for queue in queues {
        let mut of_queue = handled.remove(queue.as_str()).unwrap_or_default();
        of_queue.sort_by_key(|span| span.began);
        let places: Vec<u32> = of_queue.iter().map(|span| span.place).collect();
        if !places.iter().copied().eq(1..=messages) {
            return Err(format!("{queue} was handled as {places:?}").into());
        }
        if let Some(pair) = of_queue.windows(2).find(|pair| pair[0].ended > pair[1].began) {
            return Err(format!("{queue}: {:?} was not over when {:?} began", pair[0], pair[1]).into());
        }
    }
    match handled.keys().next() {
        Some(queue) => Err(format!("nobody enqueued into {queue}").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Span, in_order};

    fn span(queue: &str, place: u32, began: u128, ended: u128) -> Span {
        Span { queue: queue.to_owned(), place, began, ended }
    }

    #[test]
    fn order_is_checked() {
        let queues = ["a".to_owned(), "b".to_owned()];
        let good = [span("a", 1, 0, 5), span("b", 1, 2, 3), span("b", 2, 3, 9), span("a", 2, 5, 6)];
        in_order(&good, &queues, 2).unwrap();
        assert!(in_order(&good[..3], &queues, 2).is_err(), "one is missing");
        assert!(in_order(&good, &queues[..1], 2).is_err(), "one is too many");
        assert!(in_order(&[span("a", 2, 0, 1), span("a", 1, 1, 2)], &queues[..1], 2).is_err(), "wrong order");
        assert!(in_order(&[span("a", 1, 0, 5), span("a", 2, 4, 6)], &queues[..1], 2).is_err(), "at once");
        assert!(in_order(&[span("a", 1, 0, 1), span("a", 1, 1, 2)], &queues[..1], 1).is_err(), "twice");
    }

    #[test]
    fn a_span_survives_its_line() {
        let it = span("room:7", 3, 12, 34);
        assert_eq!(Span::parse(&it.line()), Some(it));
        assert_eq!(Span::parse("room:7 3"), None);
    }
}
