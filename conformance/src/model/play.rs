//! Plays a sequence on a store, step by step beside the reference.

use std::time::Duration;

use leasehold_core::{
    Archive, BatchSize, ConcurrencyLimit, Delay, Dequeue, FinalStatus, Job, JobId, Json, LeaseFor, NewJob,
    OnExpiry, Prune, PruneAge, QueueName, QueueOrder, QueuePattern, QueuePolicy, QueueStats, Queues, Receipt,
    ReceiptStatus, Record, Redrive, Schedule, SettleOutcome, StoreError, Verdict, time,
};

use super::operation::{Operation, Planned, QUEUES, Rule, Sentence};
use super::reference::Reference;
use crate::dump::Dump;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage};

/// Plays the whole sequence on a fresh database.
pub(super) async fn play(stage: &Stage, sequence: &[Operation]) -> Outcome {
    let stage = stage.fresh().await?;
    let before = stage.dump().await?;
    let mut player = Player { stage, before, leases: Vec::new(), jobs: Vec::new() };
    for operation in sequence {
        player.step(operation).await?;
    }
    player.stage.site().destroy().await
}

struct Player {
    stage: Stage,
    /// What the store holds now.
    before: Dump,
    /// Every lease that was ever granted, stale ones included.
    leases: Vec<Receipt>,
    /// Every job that was ever accepted.
    jobs: Vec<JobId>,
}

impl Player {
    async fn step(&mut self, operation: &Operation) -> Outcome {
        if let Operation::Age(hours) = operation {
            return self.age(*hours).await;
        }
        let began = self.stage.now().await?;
        let expected = self.act(operation, began).await?;
        let after = self.stage.dump().await?;
        expected.compare(&self.before, &after)?;
        self.before = after;
        Ok(())
    }

    /// Does the step and gives what the store should hold now.
    async fn act(
        &mut self,
        operation: &Operation,
        began: chrono::DateTime<chrono::Utc>,
    ) -> Outcome<Reference> {
        let store = self.stage.store.clone();
        let mut reference = Reference { dump: self.before.clone(), began, ended: began };
        match operation {
            Operation::Enqueue(planned) => {
                let jobs = planned.iter().map(new_job).collect::<Outcome<Vec<_>>>()?;
                let answers = store.enqueue(&jobs).await?;
                self.end(&mut reference).await?;
                reference.enqueue(&jobs, &answers)?;
                self.jobs
                    .extend(answers.iter().filter(|answer| !answer.deduplicated).map(|answer| answer.id));
            }
            Operation::Dequeue { queues, limit, hours } => {
                let names = queues.iter().map(|queue| queue_name(*queue)).collect::<Outcome<Vec<_>>>()?;
                self.dequeue(&mut reference, Queues::named(names)?, *limit, *hours).await?;
            }
            Operation::DequeuePrefix { limit, hours } => {
                self.dequeue(&mut reference, "queue*".parse()?, *limit, *hours).await?;
            }
            Operation::Settle(items) => {
                let items = self.items(items)?;
                let outcomes = store.settle(&items).await?;
                self.settled(&mut reference, &items, &outcomes).await?;
            }
            Operation::Ack(lease) => self.one_by_one(&mut reference, *lease, Sentence::Done).await?,
            Operation::Nack(lease) => self.one_by_one(&mut reference, *lease, Sentence::Backoff).await?,
            Operation::Release(leases) => {
                let receipts = self.receipts(leases);
                let outcomes = store.release(&receipts).await?;
                let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, Verdict::release())).collect();
                self.settled(&mut reference, &items, &outcomes).await?;
            }
            Operation::Heartbeat { leases, hours } => {
                let (receipts, hours) = (self.receipts(leases), lease_for(*hours)?);
                let answers = store.heartbeat(&receipts, hours).await?;
                self.end(&mut reference).await?;
                reference.heartbeat(&receipts, hours, &answers, &self.stage.dump().await?)?;
            }
            Operation::Reclaim { limit } => {
                let limit = BatchSize::new((*limit).into())?;
                let answer = store.reclaim(limit).await?;
                self.end(&mut reference).await?;
                reference.reclaim(limit.as_usize(), &answer, &self.stage.dump().await?)?;
            }
            Operation::RetryLater { job, hours } => {
                if let Some(id) = self.job(*job) {
                    let answer = store.retry_later(id, Schedule::after(hours_of(*hours))?).await;
                    self.end(&mut reference).await?;
                    self.intervened(id, &answer, reference.retry_later(id, hours_of(*hours)))?;
                }
            }
            Operation::Discard(job) => {
                if let Some(id) = self.job(*job) {
                    let reason = Json::new("model")?;
                    let answer = store.discard(id, reason.clone()).await;
                    self.end(&mut reference).await?;
                    self.intervened(id, &answer, reference.discard(id, reason))?;
                }
            }
            Operation::Promote(job) => {
                if let Some(id) = self.job(*job) {
                    let answer = store.promote(id).await;
                    self.end(&mut reference).await?;
                    self.intervened(id, &answer, reference.promote(id))?;
                }
            }
            Operation::Redrive { queue, limit } => {
                let limit = BatchSize::new((*limit).into())?;
                let request = Redrive { queues: queue_name(*queue)?.into(), ..Redrive::all(limit) };
                self.redrive(&mut reference, &request).await?;
            }
            Operation::RedriveJob(job) => {
                let ids = Some(self.job(*job).into_iter().collect());
                self.redrive(&mut reference, &Redrive { ids, ..Redrive::all(BatchSize::MAX) }).await?;
            }
            Operation::Prune { hours, limit } => {
                let request = Prune::older_than(hours_of(*hours), BatchSize::new((*limit).into())?)?;
                self.prune(&mut reference, &request).await?;
            }
            Operation::PruneDead(queue) => {
                let request = Prune {
                    age: PruneAge::OlderThan(Delay::ZERO),
                    statuses: Some(vec![FinalStatus::DeadLetter]),
                    queues: queue_name(*queue)?.into(),
                    ids: None,
                    limit: BatchSize::MAX,
                };
                self.prune(&mut reference, &request).await?;
            }
            Operation::Pause(queue) => self.pause(&mut reference, *queue, true).await?,
            Operation::Resume(queue) => self.pause(&mut reference, *queue, false).await?,
            Operation::SetPolicy(queue, rule) => {
                let (pattern, policy) = (QueuePattern::Exact(queue_name(*queue)?), policy(*rule)?);
                store.set_policy(&pattern, &policy).await?;
                reference.dump.policies.set(pattern, policy);
            }
            Operation::Reconnect => self.stage.store = self.stage.connect().await?,
            Operation::Inspect => self.inspect().await?,
            Operation::Transaction { lease, sentence, job, commit } => {
                self.transact(&mut reference, (*lease, *sentence), job, *commit).await?;
            }
            Operation::Age(_) => {}
        }
        self.end(&mut reference).await?;
        Ok(reference)
    }

    /// Notes the time by which the step has ended.
    async fn end(&self, reference: &mut Reference) -> Outcome {
        reference.ended = self.stage.now().await?;
        Ok(())
    }

    async fn dequeue(&mut self, reference: &mut Reference, queues: Queues, limit: u8, hours: u8) -> Outcome {
        let hours = lease_for(hours)?;
        let request = Dequeue { lease_for: hours, ..Dequeue::new(queues, "model")?.limit(limit.into())? };
        let jobs = self.stage.store.dequeue(&request).await?;
        self.end(reference).await?;
        reference.dequeue(&request.queues, limit.into(), hours, &jobs)?;
        self.leases.extend(jobs.iter().map(Job::receipt));
        Ok(())
    }

    async fn settled(
        &self,
        reference: &mut Reference,
        items: &[(Receipt, Verdict)],
        outcomes: &[SettleOutcome],
    ) -> Outcome {
        self.end(reference).await?;
        reference.settle(items, outcomes, &self.stage.dump().await?)
    }

    /// `ack` or `nack`, which answer with an error what `settle` answers with a value.
    async fn one_by_one(&self, reference: &mut Reference, lease: u8, sentence: Sentence) -> Outcome {
        let Some(receipt) = self.lease(lease) else { return Ok(()) };
        let (store, document) = (&self.stage.store, Json::error("model"));
        let answer = match sentence {
            Sentence::Done => store.ack(&receipt, document.clone()).await,
            _ => store.nack(&receipt, document.clone()).await,
        };
        let outcome = match answer {
            Ok(settled) => SettleOutcome::Settled(settled),
            Err(StoreError::LeaseLost { .. }) => SettleOutcome::LeaseLost,
            Err(error) => return Err(error.into()),
        };
        let verdict = match sentence {
            Sentence::Done => Verdict::Done(document),
            _ => Verdict::Retry { error: document, after: leasehold_core::RetryAfter::Backoff },
        };
        self.settled(reference, &[(receipt, verdict)], &[outcome]).await
    }

    fn intervened(&self, id: JobId, answer: &Result<(), StoreError>, live: bool) -> Outcome {
        let finished = self.before.history.iter().any(|job| job.id == id);
        let right = match answer {
            Ok(()) => live,
            Err(StoreError::Conflict { .. }) => !live && finished,
            Err(StoreError::NotFound(_)) => !live && !finished,
            Err(_) => false,
        };
        ensure!(A5, right, "job {id} is live: {live}, finished: {finished}; the answer is {answer:?}");
        Ok(())
    }

    async fn redrive(&self, reference: &mut Reference, request: &Redrive) -> Outcome {
        let answer = self.stage.store.redrive(request).await?;
        self.end(reference).await?;
        reference.redrive(request, &answer)
    }

    async fn prune(&self, reference: &mut Reference, request: &Prune) -> Outcome {
        let answer = self.stage.store.prune(request).await?;
        self.end(reference).await?;
        reference.prune(request, answer, &self.stage.dump().await?)
    }

    async fn pause(&self, reference: &mut Reference, queue: u8, paused: bool) -> Outcome {
        let pattern = QueuePattern::Exact(queue_name(queue)?);
        match paused {
            true => self.stage.store.pause(&pattern).await?,
            false => self.stage.store.resume(&pattern).await?,
        }
        let mut policy = reference.dump.policies.set_for(&pattern);
        policy.paused = paused.then_some(true);
        reference.dump.policies.set(pattern, policy);
        Ok(())
    }

    async fn transact(
        &mut self,
        reference: &mut Reference,
        (lease, sentence): (u8, Sentence),
        job: &Planned,
        commit: bool,
    ) -> Outcome {
        let (lease, new) = (self.lease(lease), new_job(job)?);
        let mut transaction = self.stage.begin().await?;
        let mut settled = None;
        if let Some(receipt) = lease {
            let verdict = verdict(sentence)?;
            let outcome = match transaction.settle_in(&receipt, verdict.clone()).await {
                Ok(proof) => SettleOutcome::Settled(proof),
                Err(StoreError::LeaseLost { .. }) => SettleOutcome::LeaseLost,
                Err(error) => return Err(error.into()),
            };
            settled = Some(([(receipt, verdict)], [outcome]));
        }
        let answers = transaction.enqueue_in(std::slice::from_ref(&new)).await?;
        if !commit {
            transaction.rollback().await?;
            return Ok(());
        }
        transaction.commit().await?;
        if let Some((items, outcomes)) = settled {
            self.settled(reference, &items, &outcomes).await?;
        }
        self.end(reference).await?;
        reference.enqueue(&[new], &answers)?;
        self.jobs.extend(answers.iter().filter(|answer| !answer.deduplicated).map(|answer| answer.id));
        Ok(())
    }

    /// Compares what the store tells about itself with what it holds.
    async fn inspect(&self) -> Outcome {
        let (store, now) = (&self.stage.store, self.stage.now().await?);
        for row in store.stats(&Queues::all()).await? {
            let mut expected = QueueStats::empty(row.queue.clone(), row.as_of);
            for job in self.before.jobs.iter().filter(|job| job.queue == row.queue) {
                *expected.states.entry(job.state(now)).or_default() += 1;
            }
            for state in leasehold_core::JobState::ALL {
                ensure_eq!(
                    Q1,
                    format!("{state} jobs of {}", row.queue),
                    row.count(state),
                    expected.count(state)
                );
            }
            let dead = |job: &&leasehold_core::FinishedJob| {
                job.queue == row.queue && job.outcome.status() == FinalStatus::DeadLetter
            };
            let dead = self.before.history.iter().filter(dead).count() as u64;
            ensure_eq!(Q2, format!("dead letters of {}", row.queue), row.dead_letters, dead);
        }
        let statuses = store.receipts(&self.leases).await?;
        ensure_eq!(G5, "number of statuses", statuses.len(), self.leases.len());
        for (receipt, status) in self.leases.iter().zip(statuses) {
            let live = self.before.jobs.iter().find(|job| job.id == receipt.job).cloned().map(Record::Live);
            let finished =
                self.before.history.iter().find(|job| job.id == receipt.job).cloned().map(Record::Finished);
            let expected = ReceiptStatus::of(*receipt, live.or(finished).as_ref());
            ensure_eq!(G5, format!("worth of {receipt}"), status, expected);
        }
        Ok(())
    }

    /// Every time must be `hours` further in the past, as seen from now.
    async fn age(&mut self, hours: u8) -> Outcome {
        let then = self.stage.now().await?;
        self.stage.age(hours_of(hours)).await?;
        let (now, after) = (self.stage.now().await?, self.stage.dump().await?);
        ensure_eq!(C3, "live jobs after ageing", after.jobs.len(), self.before.jobs.len());
        for (old, new) in self.before.jobs.iter().zip(&after.jobs) {
            let passed = (old.available_at - then) - (new.available_at - now);
            let seconds = passed.num_seconds() - i64::from(hours) * 3600;
            let far = old.available_at > time::later(then, 1000 * HOUR);
            ensure!(C4, far || seconds.abs() < 60, "aged by {hours} h, but {passed} passed for {new:?}");
        }
        self.before = after;
        Ok(())
    }

    fn lease(&self, number: u8) -> Option<Receipt> {
        // Most of the time one of the last few, which are more likely to be good.
        let recent = self.leases.len().min(6);
        let pool = if number.is_multiple_of(4) {
            &self.leases[..]
        } else {
            &self.leases[self.leases.len() - recent..]
        };
        (!pool.is_empty()).then(|| pool[usize::from(number / 4) % pool.len()])
    }

    fn receipts(&self, numbers: &[u8]) -> Vec<Receipt> {
        numbers.iter().filter_map(|number| self.lease(*number)).collect()
    }

    fn items(&self, items: &[(u8, Sentence)]) -> Outcome<Vec<(Receipt, Verdict)>> {
        let known = items.iter().filter_map(|(lease, sentence)| Some((self.lease(*lease)?, *sentence)));
        known.map(|(receipt, sentence)| Ok((receipt, verdict(sentence)?))).collect()
    }

    fn job(&self, number: u8) -> Option<JobId> {
        (!self.jobs.is_empty()).then(|| self.jobs[usize::from(number) % self.jobs.len()])
    }
}

fn hours_of(hours: u8) -> Duration {
    HOUR * u32::from(hours)
}

fn lease_for(hours: u8) -> Outcome<LeaseFor> {
    Ok(LeaseFor::new(hours_of(hours))?)
}

fn queue_name(number: u8) -> Outcome<QueueName> {
    Ok(QueueName::new(format!("queue{}", number % QUEUES))?)
}

fn new_job(planned: &Planned) -> Outcome<NewJob> {
    let Planned { queue, priority, key, hours, max_attempts } = planned;
    let job = NewJob::builder(queue_name(*queue)?, "model")
        .priority((*priority).into())
        .max_attempts((*max_attempts).into())
        .delay(hours_of(*hours))
        .payload(&[i32::from(*priority), i32::from(*hours)]);
    let job = match key {
        Some(key) => job.unique_key(format!("key {key}")),
        None => job,
    };
    Ok(job.build()?)
}

fn verdict(sentence: Sentence) -> Outcome<Verdict> {
    Ok(match sentence {
        Sentence::Done => Verdict::done_with("model")?,
        Sentence::Retry(hours) => Verdict::retry_after("model", hours_of(hours))?,
        Sentence::Backoff => Verdict::retry("model"),
        Sentence::Snooze(hours) => Verdict::snooze(hours_of(hours))?,
        Sentence::Dead => Verdict::dead("model"),
        Sentence::Discard => Verdict::discard("model"),
    })
}

fn policy(rule: Rule) -> Outcome<QueuePolicy> {
    let policy = QueuePolicy::default();
    Ok(match rule {
        Rule::Nothing => policy,
        Rule::Concurrency(limit) => {
            QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(limit.into())?), ..policy }
        }
        Rule::Fifo => QueuePolicy { order: Some(QueueOrder::Fifo), ..policy },
        Rule::MaxLease => QueuePolicy { max_lease: Some(lease_for(1)?), ..policy },
        Rule::DeadOnly => QueuePolicy { archive: Some(Archive::DeadOnly), ..policy },
        Rule::WaitAfterExpiry => QueuePolicy { on_expiry: Some(OnExpiry::Backoff), ..policy },
    })
}
