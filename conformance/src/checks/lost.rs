//! A database that has lost its last writes, as a failover to a replica may: whoever holds a receipt of before can do nothing with it.

use leasehold_core::{HeartbeatOutcome, JobId, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "lost":
    a_lease_after_a_loss_has_another_receipt [D4, S2, H4];
    an_id_is_not_given_again_after_a_loss [E10];
}

async fn a_lease_after_a_loss_has_another_receipt(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q")).await?;
    for round in 1..=3 {
        stage.save().await?;
        let first = stage.claim_one("q").await?;
        stage.lose().await?;
        let second = stage.claim_one("q").await?;
        ensure_eq!(D4, "the job", (first.id, second.id), (id, id));
        let receipts = (first.receipt(), second.receipt());
        ensure!(
            D4,
            receipts.0 != receipts.1,
            "round {round}: the lease before the loss and the one after it have the receipt {}",
            receipts.0
        );
        let before = stage.dump().await?;
        let beat = stage.store.heartbeat(&[receipts.0], lease_for(2 * HOUR)?).await?;
        ensure_eq!(H4, "a heartbeat of a lease that was lost", beat, [HeartbeatOutcome::Lost]);
        for verdict in [Verdict::done(), Verdict::release(), Verdict::dead("no")] {
            let outcome = stage.try_settle(receipts.0, verdict.clone()).await?;
            ensure!(S2, outcome.is_lost(), "{verdict:?} of a lease that was lost was answered {outcome:?}");
        }
        let difference = stage.dump().await?.difference(&before);
        ensure!(S2, difference.is_none(), "a receipt of a lease that was lost has changed {difference:?}");
        stage.settle(receipts.1, Verdict::release()).await?;
    }
    Ok(())
}

async fn an_id_is_not_given_again_after_a_loss(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 3).await?;
    let mut known: Vec<JobId> = Vec::new();
    for round in 1..=3 {
        stage.save().await?;
        known.extend(stage.enqueue_many("q", 5).await?);
        known.push(stage.enqueue(new_job("other")).await?);
        stage.lose().await?;
        let after =
            [stage.enqueue_many("q", 5).await?, vec![stage.enqueue(new_job("other")).await?]].concat();
        let again: Vec<_> = after.iter().filter(|id| known.contains(id)).collect();
        ensure!(E10, again.is_empty(), "round {round}: ids were given again after the loss: {again:?}");
        known.extend(after);
    }
    Ok(())
}
