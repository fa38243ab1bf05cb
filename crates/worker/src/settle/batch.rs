//! Verdicts that go to the store together, and what is done with them when that fails.

use leasehold_core::{Receipt, StoreError, Verdict};
use tokio::time::Instant;

use super::document;
use crate::execute::Finished;
use crate::outage::pause;
use crate::panics::log;
use crate::router::Ending;

/// How often a batch is sent as it is while the store fails for a reason that does not pass by itself, or is unavailable.
const TRIES: u32 = 5;
/// From so many bytes on, the size of a document is likely the reason if its verdict alone never gets through: a proxy or the server
/// closes the connection. A smaller one is never replaced for that.
const LARGE: usize = 16 << 10;
/// Into how many parts a batch is split. One bad job of 200 is alone after two splits.
const PARTS: usize = 16;

/// After so many failures the reason is likely in the jobs: others go first.
const STUBBORN: u32 = 4;

/// Jobs whose verdicts go to the store together.
pub(crate) struct Batch {
    pub(super) items: Vec<Item>,
    /// How often it has failed, in one way or another.
    failures: u32,
    /// How often the store has failed so that the same call is likely to fail again.
    lasting: u32,
    /// Whether these very verdicts were sent together before.
    repeated: bool,
    /// Whether the store skipped them all, because other transactions have their rows locked.
    locked: bool,
    /// Not to be sent before.
    due: Instant,
}

/// A job with the verdict that is to be applied.
pub(super) struct Item {
    pub(super) finished: Finished,
    pub(super) verdict: Verdict,
    pub(super) next: Next,
    /// Whether a verdict for this receipt may have been applied without our knowing.
    pub(super) doubtful: bool,
    /// How often the store refused the verdict for what it says.
    refusals: u32,
    /// How often the answer to the verdict, sent alone, was lost, and nothing was applied.
    lost: u32,
}

/// What is to be done with an item next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the verdict.
    Send,
    /// Ask whether the handler's own transaction was committed.
    AskForProof,
    /// Ask whether the verdict was applied: the answer was lost, or the store says that the receipt is stale.
    AskWhatHappened,
}

/// A job that is not settled yet: what is known of it while its verdict is with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsettled {
    pub(crate) receipt: Receipt,
    pub(crate) source: usize,
}

/// What becomes of items whose call failed.
#[derive(Default)]
pub(super) struct Failed {
    pub(super) again: Vec<Batch>,
    /// The store fails for them alone: they are left to their leases.
    pub(super) given_up: Vec<Item>,
}

impl Batch {
    /// Jobs that have just ended. No document is larger than the store takes.
    pub(crate) fn new(jobs: Vec<Finished>, payload_limit: usize) -> Self {
        let items = jobs.into_iter().map(|finished| Item::new(finished, payload_limit)).collect();
        Self { items, failures: 0, lasting: 0, repeated: false, locked: false, due: Instant::now() }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Whether it is one job whose verdict has failed alone before. While nothing succeeds, these are not sent all at once.
    pub(crate) fn is_repeated(&self) -> bool {
        self.repeated && self.len() == 1
    }

    /// Fewer failures go first.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the reason is more likely in these jobs than in the store.
    pub(crate) fn is_stubborn(&self) -> bool {
        self.failures >= STUBBORN
    }

    /// A line in the log when the reason is likely in these jobs.
    pub(super) fn say_if_stubborn(&self, error: &str) {
        if self.failures == STUBBORN {
            let (jobs, first) = (self.len(), self.items.first().map(Item::receipt));
            let first = first.map(|receipt| receipt.to_string());
            log!(warn, jobs, first, error, "verdicts cannot be applied; still trying");
        }
    }

    /// To be sent at once.
    pub(crate) fn hurry(&mut self) {
        self.due = Instant::now();
    }

    /// Takes the jobs of another batch, all of whose rows are locked too. Whether it did.
    pub(crate) fn join(&mut self, other: &mut Self, most: usize) -> bool {
        let both = self.locked && other.locked && self.len() + other.len() <= most;
        if both {
            self.items.append(&mut other.items);
            self.failures = self.failures.max(other.failures);
        }
        both
    }

    pub(crate) fn jobs(&self) -> Vec<Unsettled> {
        self.items.iter().map(Item::unsettled).collect()
    }

    /// The same with other items.
    pub(super) fn with(&self, items: Vec<Item>) -> Self {
        Self { items, ..*self }
    }

    /// To be sent again later: other transactions have these rows locked.
    pub(super) fn locked(mut self) -> Self {
        self.failures = self.failures.saturating_add(1);
        (self.repeated, self.locked) = (true, true);
        self.due = Instant::now() + pause(self.failures);
        self
    }

    /// What to do after this error. In a hurry a batch is not tried twice.
    pub(super) fn failed(mut self, error: &StoreError, hurry: bool) -> Failed {
        if let StoreError::Invalid(invalid) = error {
            return self.refused(invalid);
        }
        self.failures = self.failures.saturating_add(1);
        let lasting = !error.is_retryable() && !error.is_unknown();
        self.lasting = self.lasting.saturating_add(u32::from(lasting));
        let hopeless = self.lasting >= TRIES;
        if self.items.len() > 1 && (hurry || error.is_unknown() || hopeless || self.failures >= TRIES) {
            return Failed { again: self.split(), given_up: Vec::new() };
        }
        if hopeless {
            return Failed { again: Vec::new(), given_up: self.items };
        }
        (self.repeated, self.locked) = (true, false);
        self.due = Instant::now() + pause(self.failures);
        Failed { again: vec![self], given_up: Vec::new() }
    }

    /// The store refuses a verdict for what it says: find out which, and have it say less.
    fn refused(mut self, invalid: &leasehold_core::Invalid) -> Failed {
        if self.items.len() > 1 {
            return Failed { again: self.split(), given_up: Vec::new() };
        }
        self.due = Instant::now();
        let (again, given_up): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.items).into_iter().partition(|item| item.refusals < 2);
        let again = again.into_iter().map(|item| self.with(vec![item.saying_less(invalid)])).collect();
        Failed { again, given_up }
    }

    /// Parts that are sent at once. Each has one try left if the store fails for good.
    fn split(self) -> Vec<Self> {
        let (failures, lasting) = (self.failures, self.lasting.min(TRIES - 1));
        let size = self.items.len().div_ceil(PARTS);
        let (mut parts, mut items) = (Vec::new(), self.items.into_iter().peekable());
        while items.peek().is_some() {
            let items = items.by_ref().take(size).collect();
            parts.push(Self {
                items,
                failures,
                lasting,
                repeated: false,
                locked: false,
                due: Instant::now(),
            });
        }
        parts
    }
}

impl Item {
    fn new(finished: Finished, payload_limit: usize) -> Self {
        let (verdict, next) = match &finished.ending {
            Ending::Verdict(verdict) => (document::fit(verdict.clone(), payload_limit), Next::Send),
            Ending::Settled(_) => (Verdict::done(), Next::AskForProof),
        };
        Self { finished, verdict, next, doubtful: false, refusals: 0, lost: 0 }
    }

    pub(super) fn receipt(&self) -> Receipt {
        self.finished.job.receipt()
    }

    pub(super) fn unsettled(&self) -> Unsettled {
        Unsettled { receipt: self.receipt(), source: self.finished.source }
    }

    /// The verdict was sent alone, the answer was lost, and nothing was applied. If that happens again and again, a large document is
    /// replaced: its size is likely the reason, and it would be so for ever.
    pub(super) fn not_applied(mut self) -> Self {
        self.lost = self.lost.saturating_add(1);
        let bytes = document::bytes(&self.verdict);
        if self.lost >= TRIES && bytes >= LARGE {
            let why = format!("it is {bytes} bytes long, and the answer to it was lost {} times", self.lost);
            let receipt = self.receipt();
            log!(warn, %receipt, bytes, "a verdict never gets through; it is sent with a smaller document");
            self.verdict = document::replace(self.verdict, &why);
        }
        self
    }

    /// The same sort of verdict with a smaller document.
    fn saying_less(mut self, invalid: &leasehold_core::Invalid) -> Self {
        self.refusals += 1;
        self.verdict = match self.refusals {
            1 => document::replace(self.verdict, &invalid.to_string()),
            _ => document::empty(self.verdict),
        };
        self
    }
}
