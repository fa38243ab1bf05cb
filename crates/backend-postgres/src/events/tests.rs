//! What is told arrives, or is known to be missing.
#![allow(clippy::unwrap_used, reason = "tests may")]

use futures_util::{FutureExt, StreamExt};

use super::*;

fn news(ids: std::ops::Range<i64>) -> News {
    let line = |id| Line {
        kind: EventKind::Enqueued,
        job: JobId::new(id),
        at: DateTime::from_timestamp_micros(id),
        queue: format!("a queue {}", "x".repeat(100)),
    };
    News::of(ids.map(line))
}

/// What has come so far: ids, or how many were missed.
fn heard(events: &mut Events) -> Vec<Result<i64, u64>> {
    let mut heard = Vec::new();
    while let Some(Some(told)) = events.next().now_or_never() {
        heard.push(told.map(|event| event.job.get()).map_err(|lagged| lagged.0));
    }
    heard
}

#[test]
fn messages_are_small_and_lose_nothing() {
    let (teller, listener) = (Bulletin::default(), Bulletin::default());
    let mut events = listener.subscribe(&Queues::all());
    teller.tell(news(0..1000));
    let messages = teller.take("me");
    assert!(messages.len() > 10 && messages.iter().all(|message| message.len() < 8000));
    messages.iter().for_each(|message| listener.hear(message));
    assert_eq!(heard(&mut events), (0..1000).map(Ok).collect::<Vec<_>>());
    assert!(teller.take("me").is_empty());
}

#[test]
fn what_was_missed_is_counted() {
    let (teller, listener) = (Bulletin::default(), Bulletin::default());
    let mut events = listener.subscribe(&Queues::all());
    for (ids, comes) in [(0..2, true), (2..5, false), (5..6, true), (6..7, true)] {
        teller.tell(news(ids));
        for message in teller.take("me").iter().filter(|_| comes) {
            listener.hear(message);
        }
    }
    assert_eq!(heard(&mut events), [Ok(0), Ok(1), Err(3), Ok(5), Ok(6)]);
}

#[test]
fn what_nobody_can_send_is_missed_from_the_front() {
    let (teller, listener) = (Bulletin::default(), Bulletin::default());
    teller.tell(news(0..1));
    teller.take("me").iter().for_each(|message| listener.hear(message));
    let mut events = listener.subscribe(&Queues::all());
    let all = UNSENT as i64 + 3;
    teller.tell(news(1..all));
    for message in teller.take("me").iter().take(1) {
        listener.hear(message);
    }
    assert_eq!(heard(&mut events)[..2], [Err(2), Ok(3)]);
}

#[test]
fn in_a_transaction_the_server_gives_the_time() {
    let listener = Bulletin::default();
    let mut events = listener.subscribe(&"q".parse::<Queues>().unwrap());
    let line =
        |queue: &str| Line { kind: EventKind::Settled, job: JobId::new(7), at: None, queue: queue.into() };
    for message in News::of([line("other"), line("q")]).in_transaction() {
        listener.hear(&format!("{TRANSACTION} 5000000\n{message}"));
    }
    let event = events.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!((event.kind, event.queue.as_str(), event.at.timestamp()), (EventKind::Settled, "q", 5));
}
