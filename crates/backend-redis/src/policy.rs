//! Policies: one hash for all of them, and a version that every change raises.

use leasehold_core::{EffectivePolicy, Policies, QueueName, QueuePattern, QueuePolicy, Result, StoreError};

use crate::error::Effect;
use crate::fan;
use crate::link::{Link, grouped};
use crate::script::{Call, scripts};

/// Others may set policies at the same time; each time one of us succeeds.
const TRIES: usize = 1000;

pub(crate) async fn policies(link: &Link) -> Result<Policies> {
    link.catch_up("policies", None).await?;
    match link.known(|directory| directory.unreadable().map(str::to_owned)) {
        Some(pattern) => Err(StoreError::corrupt(format!(
            "the policy of {pattern} cannot be read; its queues are paused until another is set"
        ))),
        None => Ok(link.known(|directory| directory.policies().clone())),
    }
}

/// Sets the policy of `pattern` to what `change` makes of all of them.
pub(crate) async fn change(
    link: &Link,
    operation: &'static str,
    pattern: &QueuePattern,
    change: impl Fn(&Policies) -> QueuePolicy + Send + Sync,
) -> Result<()> {
    for _ in 0..TRIES {
        link.catch_up(operation, None).await?;
        let (version, old) =
            link.known(|directory| (directory.version.clone(), directory.policies().clone()));
        let policy = change(&old);
        let mut new = old.clone();
        new.set(pattern.clone(), policy.clone());
        fill_buckets(link, operation, pattern, &old, &new).await?;
        let text = link.known(|directory| directory.encode(pattern, &policy));
        let text = text.map_err(|error| StoreError::backend(operation, error))?;
        let mut call = Call::new(&scripts::set_policy);
        call.key(link.layout.prefix.common("version")).key(link.layout.prefix.common("policies"));
        call.arg(version).arg(pattern.to_string()).arg(text);
        if link.call::<Option<String>>(operation, Effect::Write, &call).await?.is_some() {
            return announce(link, operation, pattern).await;
        }
    }
    Err(StoreError::unavailable(operation, "the policies change all the time"))
}

/// Sees that every shard goes by the policies before anybody is woken by them.
async fn announce(link: &Link, operation: &'static str, pattern: &QueuePattern) -> Result<()> {
    let told = link.stamp_all(operation).await;
    // Somewhere the policy may hold already.
    told.map_err(|error| StoreError::unknown(operation, error))?;
    let mut command = redis::cmd("PUBLISH");
    command.arg(link.layout.prefix.events()).arg(format!("policy {pattern}"));
    if let Err(error) = link.send::<u64>(operation, Effect::Read, &command).await {
        tracing::debug!(%error, "nobody was told of a policy; those who wait look by themselves");
    }
    Ok(())
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
    let mut queues = link.select(operation, &pattern.clone().into()).await?;
    queues.retain(|queue| rate(old, queue) != rate(new, queue));
    let shards = grouped(queues.iter().map(|queue| (link.layout.shard(queue), queue)));
    let calls = shards.into_values().map(|queues| async move {
        let mut pipeline = redis::pipe();
        for queue in queues {
            pipeline.del(format!("{}:bucket", link.layout.queue(queue))).ignore();
        }
        link.send_all::<()>(operation, Effect::Write, &pipeline).await
    });
    fan::writes(operation, calls).await.map(drop)
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
