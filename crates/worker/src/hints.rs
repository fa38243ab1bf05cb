//! The store's hints that there is something to claim.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use leasehold_core::{Queues, Store, Wakeups};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::outage::{LONGEST, Outage, with_causes};
use crate::panics::message;

/// Passes the store's hints on, and subscribes again when the stream ends.
pub(crate) async fn listen(
    store: Arc<dyn Store>,
    queues: Queues,
    hint: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut outage = Outage::new("wakeups");
    let listening = async {
        loop {
            let hints = AssertUnwindSafe(async { store.wakeups(&queues).await }).catch_unwind().await;
            let error = match hints {
                Ok(Ok(hints)) => {
                    if outage.is_on() {
                        hint.notify_one(); // Some may have been missed.
                    }
                    let passing = AssertUnwindSafe(pass_on(hints, &hint, &mut outage)).catch_unwind().await;
                    match passing {
                        Ok(()) => "the stream of hints has ended".to_owned(),
                        Err(panic) => format!("the stream of hints panicked: {}", message(panic)),
                    }
                }
                Ok(Err(error)) => with_causes(&error),
                Err(panic) => format!("the store panicked: {}", message(panic)),
            };
            tokio::time::sleep(outage.failed(&error)).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listening => {}
    }
}

/// Passes hints on until they end. An outage is over when they have lasted: a stream that always ends at once is
/// subscribed to less and less often.
async fn pass_on(mut hints: Wakeups, hint: &Notify, outage: &mut Outage) {
    let mut lasting = pin!(tokio::time::sleep(LONGEST));
    loop {
        tokio::select! {
            biased;
            next = hints.next() => match next {
                Some(()) => hint.notify_one(),
                None => return,
            },
            () = &mut lasting, if outage.is_on() => outage.over(),
        }
    }
}
