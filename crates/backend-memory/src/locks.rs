//! Jobs that open transactions have locked (T10).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use leasehold_core::JobId;

/// The transaction that has locked each job. A lock ends when its [`Owner`] is dropped: by a commit, a rollback, or the drop of
/// the connection (T8).
#[derive(Default)]
pub(crate) struct Locks {
    owners: HashMap<JobId, Weak<()>>,
}

/// One transaction, as the owner of locks.
#[derive(Default)]
pub(crate) struct Owner(Arc<()>);

impl Locks {
    /// Locks a job. Forgets the locks of transactions that have ended.
    pub(crate) fn lock(&mut self, job: JobId, owner: &Owner) {
        self.owners.retain(|_, owner| owner.strong_count() > 0);
        self.owners.insert(job, Arc::downgrade(&owner.0));
    }

    /// Whether an open transaction has locked the job.
    pub(crate) fn is_locked(&self, job: JobId) -> bool {
        self.owners.get(&job).is_some_and(|owner| owner.strong_count() > 0)
    }

    /// Whether another open transaction has locked the job.
    pub(crate) fn is_locked_by_other(&self, job: JobId, owner: &Owner) -> bool {
        let is_own = |other: &Weak<()>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(&owner.0));
        self.is_locked(job) && !self.owners.get(&job).is_some_and(is_own)
    }
}
