//! The promises of a store, numbered.
//!
//! A clause is one sentence with a name such as [`D2`]. The docs of [`Store`](crate::Store) and
//! [`TxStore`](crate::TxStore) link to the clauses that each operation keeps, SQL names them beside the line that keeps
//! them, and the conformance suite has at least one check for each.

use std::fmt;

/// One promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Clause {
    /// Its name, such as `D2`.
    pub id: &'static str,
    /// What is promised, in one sentence.
    pub promise: &'static str,
}

impl Clause {
    /// The clause with this name.
    pub fn by_id(id: &str) -> Option<Self> {
        ALL.iter().copied().find(|clause| clause.id == id)
    }
}

impl fmt::Debug for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.promise)
    }
}

macro_rules! clauses {
    ($($id:ident: $promise:literal)*) => {
        $(
            #[doc = $promise]
            pub const $id: Clause = Clause { id: stringify!($id), promise: $promise };
        )*

        /// Every clause, in order.
        pub const ALL: &[Clause] = &[$($id),*];
    };
}

clauses! {
    E1: "A batch is accepted whole or not at all; over several queues, if the backend promises atomic batches."
    E2: "Each job of a batch gets one answer, in the order given."
    E3: "A live job with the same queue and unique key wins: its id is answered as deduplicated, and nothing of it changes."
    E4: "Of the jobs with one queue and unique key in a batch the first is accepted, and the others are answered with its id."
    E5: "However many callers race, a queue has at most one live job per unique key, and each caller is answered with its id."
    E6: "A unique key is taken from the moment its job is accepted until the job is finished, through leases, retries and snoozes, and free afterwards, also for a transaction that began before."
    E7: "Queue names and unique keys are compared byte for byte, and a key in one queue has nothing to do with the same key in another."
    E8: "A new job is available now, after its delay or at its time, by the store's clock; a time in the past means now."
    E9: "A job comes back as it was enqueued: queue, kind, priority, unique key, payload, headers and allowed attempts."
    E10: "Ids are positive, never given twice, also if the database has lost the job that had one, and rise in the order in which one caller enqueues."
    E11: "A new job has spent no attempt, has no lease and no error, is in epoch 0, was never leased, and was created and updated now."
    E12: "A job that does not say how many attempts it has gets its queue's default, or else 5."

    D1: "Only jobs that are Ready by the store's clock are leased."
    D2: "No two live leases name the same job, however many callers race."
    D3: "A lease spends one attempt as it is granted."
    D4: "A lease raises the job's epoch, and no lease of a job ever has the epoch of an earlier one, also if the database has lost that one."
    D5: "A call leases at most as many jobs as asked for, none twice."
    D6: "Over named queues, jobs are leased by priority from high to low, then by available_at, then by id."
    D7: "A lease names the worker and ends at the store's now plus the length asked for."
    D8: "The first lease sets first_leased_at to now, and nothing changes it afterwards."
    D9: "Only jobs of the queues asked for are leased."
    D10: "A call changes nothing of the jobs that it does not lease, and of those it leases only lease, attempts, epoch, first_leased_at and updated_at."
    D11: "Over a prefix the order of D6 holds inside each queue, and queues take turns: none is served again before every other matching queue that had a leasable job all the while has been served."
    D12: "The answer shows each leased job as it is now stored, in the order in which the jobs were leased."
    D13: "While nobody else is calling, a call leases as many jobs as it asks for, or all that can be leased."
    D14: "A call that returns fewer jobs than it asked for has left no job behind that was committed and Ready before the call began, in a queue that was open and within its limits, unless another transaction had its row locked."

    S1: "Each item gets one outcome, in the order given, and none affects another."
    S2: "A stale receipt is answered LeaseLost and changes nothing at all."
    S3: "Done moves the job to the history as completed, with its result."
    S4: "Retry with a delay makes the job available that much after now, with its error kept, its attempts as spent and no lease."
    S5: "Retry without a delay waits as the queue's backoff says for the attempts spent."
    S6: "Retry of a job without attempts left moves it to the history as a dead letter, with its error."
    S7: "Snooze gives the attempt back and makes the job available that much after now, without touching its last error."
    S8: "Dead moves the job to the history as a dead letter, with its error, however many attempts are left."
    S9: "Discard moves the job to the history as discarded, with its reason."
    S10: "A verdict that comes after the lease has passed counts, as long as nobody has taken or reclaimed the job."
    S11: "A verdict makes its receipt stale, so that of several for one receipt, in one batch or in several, only the first counts."
    S12: "A finished job has one history row, with the identity, attempts, epoch, times and last holder that the job had, finished now."
    S13: "The receipt alone is the authority: no worker's name is asked for, and none lends a stale receipt any force."
    S14: "A verdict on a job that another transaction has locked is answered Pending and changes nothing, and the other items of the call count without waiting for that lock, if the backend promises concurrent writers."

    H1: "A heartbeat makes the lease end at the store's now plus the length asked for."
    H2: "A heartbeat never makes a lease end earlier."
    H3: "A lease that has passed cannot be extended: nothing changes, and the answer is Lost, or Pending while a transaction has the job locked."
    H4: "A stale receipt is answered Lost and changes nothing at all."
    H5: "Each receipt gets one answer, in the order given, and none affects another."
    H6: "A heartbeat changes nothing of a job but the end of its lease and updated_at."
    H7: "A job that an open transaction is about to settle holds up no other receipt of a heartbeat, if the backend promises concurrent writers."

    R1: "No lease is reclaimed before it has passed by the store's clock."
    R2: "A passed lease of a job with attempts left is taken away, and the job is Ready at once, with available_at now."
    R3: "A passed lease of a job without attempts left makes the job a dead letter with the error lease_expired."
    R4: "An Exhausted job becomes a dead letter with its last error, or attempts_exhausted if it has none."
    R5: "A call takes at most as many jobs as asked for, all of them while nobody else is calling, and repeated calls get through everything."
    R6: "However many callers race, each passed lease is reclaimed once."
    R7: "A receipt whose lease was reclaimed is stale."
    R8: "Reclaiming changes no attempts, raises the epoch of a job that had a lease, and leaves the error lease_expired as its last error."
    R9: "The answer names each job that was reclaimed and what became of it."

    L1: "Release gives the attempt back, makes the job Ready now and its receipt stale; with a stale receipt it changes nothing and says so."

    A1: "retry_later makes a job available at the given time, taking it from its holder if it has one; attempts stay as spent."
    A2: "discard moves a job to the history as discarded, whoever holds it."
    A3: "promote makes a Scheduled or Retrying job available now, and leaves every other alone."
    A4: "Taking a job away from a holder raises its epoch, and the holder's receipt is stale."
    A5: "An unknown job is NotFound and a finished one is Conflict; nothing changes."

    X1: "Only dead letters are redriven, and only those that the request asks for, by id from the smallest, at most as many as it says."
    X2: "A redriven job is Ready now under its old id, with all its attempts before it and everything that was enqueued as it was."
    X3: "A redriven job keeps its epoch, so that no old receipt is ever good again."
    X4: "A dead letter whose unique key a live job has stays where it is and is named as a conflict, up to the request's limit; it keeps no other from being redriven."
    X5: "A redriven job leaves the history, counts one more redrive and keeps its dead letter's error as its last error."

    G1: "get finds a job in the queue or in the history, and nothing for an unknown id."
    G2: "jobs lists the matching live jobs by id, each once over all pages, and no other."
    G3: "history lists the matching finished jobs by id, each once over all pages, and no other."
    G4: "stuck lists the jobs whose leases passed at least so long ago and were not reclaimed."
    G5: "receipts tells for each receipt what it is worth, in order: held until, requeued or finished by its verdict, or gone."

    Q1: "stats counts the live jobs of each queue by their derived state."
    Q2: "stats names the time since which the oldest Ready job is available, the dead letters and the live jobs by attempts."
    Q3: "stats answers every queue asked for by name, and of a prefix those with live jobs or dead letters, sorted by name."

    Y1: "explain says of a job that is finished, dead or unknown that it is."
    Y2: "explain says who has leased a job and until when, or that the lease has passed."
    Y3: "explain says until when a job waits for its time, or that its attempts are spent."
    Y4: "explain says if the job's queue is paused or has reached its concurrency or rate limit."
    Y5: "explain names the job behind which a Ready job waits, or says that it is next."

    N1: "next_available_at is no later than the first moment at which time alone makes a job of the queues that are not paused leasable or lets a lease of theirs pass."
    N2: "next_available_at is later than now, or nothing, while no job is leasable, none is Exhausted and no lease has passed."

    U1: "prune removes finished jobs of the given age, statuses, queues and ids, and no others, and never a live job."
    U2: "prune removes at most as many as asked for and says how many; repeated calls get through all of them."
    U3: "prune by retention removes what is older than its own queue's retention, and nothing of queues without one."
    U4: "prune that is not restricted to queues, statuses or ids also forgets idempotency keys whose retention has passed, whatever age it names for jobs, after the jobs and counted with them for its limit and its answer; one that is restricted forgets no key."

    P1: "Nothing is leased from a paused queue, while everything else works on it; resume ends that."
    P2: "A queue with a concurrency limit never has more leases than that, over all callers and handles."
    P3: "A queue with a rate limit grants at most the burst at once and then as many leases as the rate allows, over all callers and handles."
    P4: "A Fifo queue has one lease at a time and grants it to the committed live job with the smallest id, whatever its priority."
    P5: "The live job with the smallest id blocks its Fifo queue while it waits, retries, is leased or is Exhausted, and blocks no other queue."
    P6: "No lease is granted or extended further than the queue's max_lease from now; one that reaches further already stays."
    P7: "With archive dead_only, completed and discarded jobs leave no history; dead letters do."
    P8: "A policy for one queue goes before one for a prefix, a longer prefix before a shorter, field by field."
    P9: "Policies are kept as they were set, replaced as a whole by the next set_policy, and removed by an empty one."
    P10: "pause and resume change nothing of a policy but whether it is paused."
    P11: "A policy that the backend cannot keep is refused as Unsupported, and changes nothing."
    P12: "With on_expiry backoff, a reclaimed job waits as the queue's backoff says instead of being Ready at once."
    P13: "Limits of one queue hold back no other queue."
    P14: "After the store's clock was set back, the bucket of a rate limit is full no later than the burst takes at its rate, counted from the next claim."

    I1: "Input beyond a limit is refused as Invalid with its field and limit, and changes nothing."
    I2: "An empty batch is answered with an empty answer."

    C1: "Every accepted job that was not pruned, and that its queue's archive keeps, is in the queue or in the history, never in both, at every moment that anybody can see."
    C2: "A future that is dropped at any await point leaves each job as it was or as it should become, and the store fit for use."
    C3: "Any sequence of operations leaves what the model of this contract says."
    C4: "Every time is the store's: now, not the caller's clock, decides and is written down, in whole microseconds of UTC up to the year 9999."
    C5: "Several handles on one database see the same jobs, and opening them at once is safe."
    C6: "A durable store has everything still when every handle was closed and a new one is opened."
    C7: "A live job whose id a finished one has already, as after the restore of an older backup, ends like any other, and no verdict, reclaim or redrive of other jobs fails because of it."

    T1: "Jobs enqueued in a transaction exist once it has committed, and never before or otherwise."
    T2: "A verdict given in a transaction counts once it has committed, and leaves no trace otherwise."
    T3: "A stale receipt in a transaction is an error LeaseLost, so that the caller's own writes are rolled back with it; a good one never is, however old the transaction's view of the database."
    T4: "An operation on a connection without an open transaction is refused, and changes nothing, also if the connection takes a transaction for open that the database has ended."
    T5: "once_in answers true to one transaction that commits, and false to later ones for as long as the key is kept, which is at least its retention (30 days unless set); a rollback forgets it."
    T6: "An expected outcome (a duplicate, a second once, a lost lease) leaves the transaction fit for use and commit."
    T7: "However transactions, verdicts and reclaims interleave, and whatever ends a transaction, the writes of at most one transaction that settled a lease are committed, and exactly if its verdict counts."
    T8: "A transaction that is dropped leaves nothing behind, no lock either."
    T9: "A verdict in a transaction does what the same verdict does outside."
    T10: "A job that a transaction has locked with lock_in stays with that transaction until it ends: no reclaim, verdict or intervention takes the job, heartbeats keep the transaction neither from settling it nor from committing at any isolation level, and they are answered Pending, if the backend promises concurrent writers."

    W1: "A subscriber is woken after a job of its queues has become leasable by an operation: enqueue, commit, retry, release, reclaim, promote, redrive, resume, another policy, or the end of a lease in a queue that has limits."
    W2: "A subscriber is not woken by other queues."
    V1: "A subscriber to events is told what happened to the jobs of its queues, in order, after it has happened."
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn names_are_unique_and_promises_are_one_sentence() {
        for (index, clause) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.id != clause.id), "{clause} stands twice");
            assert!(clause.promise.ends_with('.') && !clause.promise.contains(". "), "{clause}");
        }
    }
}
