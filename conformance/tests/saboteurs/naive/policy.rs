//! What operators say about queues.

use leasehold_core::{
    EffectivePolicy, MaxAttempts, Policies, QueueName, QueuePattern, QueuePolicy, Result, backend,
};

use super::{Naive, Own, State, Store};
use crate::fault::Fault;

pub(super) async fn set_policy(store: &Naive, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
    if !store.has(Fault::UnsupportedPolicyAccepted) {
        backend::check_policy(policy, &store.capabilities())?;
    }
    let step = |state: &mut State, own: &mut Own, _| {
        state.set_policy(pattern, policy);
        own.policies = None;
    };
    store.atomically_own(step).await;
    Ok(())
}

impl State {
    fn set_policy(&mut self, pattern: &QueuePattern, policy: &QueuePolicy) {
        let before = self.clone();
        let policy = match self.fault {
            Some(Fault::SetPolicyMerges) => policy.or(&self.policies.set_for(pattern)),
            Some(Fault::EmptyPolicyRemovesNothing) if policy.is_empty() => self.policies.set_for(pattern),
            Some(Fault::PolicyForgetsOnExpiry) => QueuePolicy { on_expiry: None, ..policy.clone() },
            Some(Fault::PolicyForgetsMaxLease) => QueuePolicy { max_lease: None, ..policy.clone() },
            _ => policy.clone(),
        };
        self.policies.set(pattern.clone(), policy);
        // A changed rate limit starts with a full bucket.
        let policies = self.policies.clone();
        let same =
            |queue: &QueueName| policies.effective(queue).rate == before.policies.effective(queue).rate;
        self.buckets.retain(|queue, _| same(queue) || before.has(Fault::ChangedRateKeepsItsBucket));
        if self.has(Fault::PolicysAttemptsFollow) {
            let attempts = |queue: &QueueName| policies.effective(queue).max_attempts;
            self.jobs.values_mut().for_each(|job: &mut leasehold_core::Job| {
                let followed: MaxAttempts = attempts(&job.queue);
                job.max_attempts = followed;
            });
        }
        let queues: Vec<QueueName> = self.jobs.values().map(|job| job.queue.clone()).collect();
        for queue in queues.iter().filter(|queue| pattern.matches(queue)) {
            self.wake(queue, Fault::NoWakeOnResume);
        }
    }

    /// What holds for one queue.
    pub(super) fn effective(&self, queue: &QueueName) -> EffectivePolicy {
        let matching = || self.policies.iter().filter(|(pattern, _)| pattern.matches(queue));
        let fold = |policies: Vec<&QueuePolicy>| {
            policies.iter().fold(QueuePolicy::default(), |sum, policy| sum.or(policy)).into()
        };
        let mut by_length: Vec<_> = matching().collect();
        by_length.sort_by_key(|(pattern, _)| match pattern {
            QueuePattern::Exact(_) => 0,
            QueuePattern::Prefix(prefix) if self.has(Fault::ShorterPrefixWins) => 1 + prefix.as_str().len(),
            QueuePattern::Prefix(prefix) => 1000 - prefix.as_str().len(),
        });
        match self.fault {
            Some(Fault::PrefixBeatsExact) => {
                by_length
                    .rotate_left(usize::from(self.policies.set_for(&queue.into()) != QueuePolicy::default()));
                fold(by_length.iter().map(|(_, policy)| policy).collect())
            }
            Some(Fault::ShorterPrefixWins) => fold(by_length.iter().map(|(_, policy)| policy).collect()),
            Some(Fault::PolicyOfAQueueHidesThePrefix) => {
                fold(by_length.iter().take(1).map(|(_, policy)| policy).collect())
            }
            Some(Fault::OnExpiryOfThePrefixWins) => {
                let prefix = by_length.iter().find(|(pattern, _)| matches!(pattern, QueuePattern::Prefix(_)));
                let said = prefix.and_then(|(_, policy)| policy.on_expiry);
                let effective = self.policies.effective(queue);
                EffectivePolicy { on_expiry: said.unwrap_or(effective.on_expiry), ..effective }
            }
            Some(Fault::PrefixPoliciesIgnored) => {
                Policies::new([(queue.into(), self.policies.set_for(&queue.into()))]).effective(queue)
            }
            _ => self.policies.effective(queue),
        }
    }
}
