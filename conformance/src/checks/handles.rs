//! Several handles on one database.

use leasehold_core::{HeartbeatOutcome, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job};

checks! { "handles":
    a_dedicated_handle_sees_the_same_jobs [C5];
}

async fn a_dedicated_handle_sees_the_same_jobs(stage: Stage) -> Outcome {
    let Some(dedicated) = stage.store.dedicated().await? else {
        return Err(Problem::NotApplicable("the store gives no dedicated handle"));
    };
    let job = stage.leased(new_job("q")).await?;
    let answers = dedicated.heartbeat(&[job.receipt()], lease_for(2 * HOUR)?).await?;
    let extended = matches!(answers[..], [HeartbeatOutcome::Extended { .. }]);
    ensure!(C5, extended, "the heartbeat of a good lease by the dedicated handle was answered {answers:?}");
    let outcomes = dedicated.settle(&[(job.receipt(), Verdict::done())]).await?;
    ensure!(C5, !outcomes[0].is_lost(), "its verdict was answered {outcomes:?}");
    stage.finished(job.id).await?;
    let [new] = [new_job("q").build()?];
    let accepted = dedicated.enqueue(&[new]).await?;
    let leased = stage.claim("q", 10).await?;
    ensure_eq!(C5, "leased of what the dedicated handle enqueued", ids(&leased), [accepted[0].id]);
    Ok(())
}
