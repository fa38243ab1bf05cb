//! Policies: one hash for all of them, and a version that every change raises.

use leasehold_core::{EffectivePolicy, Policies, QueueName, QueuePattern, QueuePolicy, Result, StoreError};

use crate::error::Effect;
use crate::link::Link;
use crate::script::{Call, scripts};

/// Others may set policies at the same time; each time one of us succeeds.
const TRIES: usize = 1000;

pub(crate) async fn policies(link: &Link) -> Result<Policies> {
    link.catch_up("policies").await?;
    Ok(link.known(|directory| directory.policies().clone()))
}

/// Sets the policy of `pattern` to what `change` makes of all of them.
pub(crate) async fn change(
    link: &Link,
    operation: &'static str,
    pattern: &QueuePattern,
    change: impl Fn(&Policies) -> QueuePolicy + Send + Sync,
) -> Result<()> {
    for _ in 0..TRIES {
        link.catch_up(operation).await?;
        let (version, old) =
            link.known(|directory| (directory.version().to_owned(), directory.policies().clone()));
        let policy = change(&old);
        let mut new = old.clone();
        new.set(pattern.clone(), policy.clone());
        fill_buckets(link, operation, pattern, &old, &new).await?;
        let text = if policy.is_empty() { Ok(String::new()) } else { serde_json::to_string(&policy) };
        let text = text.map_err(|error| StoreError::backend(operation, error))?;
        let mut call = Call::new(&scripts::set_policy);
        call.key(link.prefix.version()).key(link.prefix.policies());
        call.arg(version).arg(pattern.to_string()).arg(text).arg(link.prefix.events());
        if link.call::<bool>(operation, Effect::Write, &call).await? {
            return link.catch_up(operation).await;
        }
    }
    Err(StoreError::unavailable(operation, "the policies change all the time"))
}

/// Queues that get another rate start with a full bucket. A lease in between makes a bucket of the old rate, which counts
/// for nothing with the new one.
async fn fill_buckets(
    link: &Link,
    operation: &'static str,
    pattern: &QueuePattern,
    old: &Policies,
    new: &Policies,
) -> Result<()> {
    let rate = |policies: &Policies, queue: &QueueName| -> Option<_> {
        let policy: EffectivePolicy = policies.effective(queue);
        policy.rate
    };
    let queues = link.known(|directory| directory.select(&pattern.clone().into()));
    let mut pipeline = redis::pipe();
    for queue in queues.iter().filter(|queue| rate(old, queue) != rate(new, queue)) {
        pipeline.del(format!("{}:bucket", link.prefix.queue(queue))).ignore();
    }
    if pipeline.is_empty() {
        return Ok(());
    }
    link.send::<()>(operation, Effect::Write, &pipeline).await
}

/// What `pattern` says when it is paused or resumed; the rest of its policy stays (P10).
pub(crate) fn paused(policies: &Policies, pattern: &QueuePattern, paused: bool) -> QueuePolicy {
    let paused = if paused { Some(true) } else { paused_by_wider(policies, pattern).then_some(false) };
    QueuePolicy { paused, ..policies.set_for(pattern) }
}

/// Whether a queue of this pattern would still be paused if the pattern itself said nothing about it.
fn paused_by_wider(policies: &Policies, pattern: &QueuePattern) -> bool {
    let covers = |wider: &QueuePattern| match (wider, pattern) {
        (QueuePattern::Prefix(wider), QueuePattern::Exact(name)) => wider.matches(name),
        (QueuePattern::Prefix(wider), QueuePattern::Prefix(prefix)) => {
            wider != prefix && prefix.as_str().starts_with(wider.as_str())
        }
        (QueuePattern::Exact(_), _) => false,
    };
    let wider = policies.iter().filter(|(wider, policy)| covers(wider) && policy.paused.is_some());
    let longest = wider.max_by_key(|(wider, _)| wider.to_string().len());
    longest.is_some_and(|(_, policy)| policy.paused == Some(true))
}
