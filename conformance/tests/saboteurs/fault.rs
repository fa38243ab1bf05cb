//! What can be wrong with a store.

/// Lists the faults once, as an enum and as a list.
macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One way to be wrong. Each is consulted at the one point where the store is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

faults! {

    // Enqueueing
    /// A batch is accepted up to its first bad job.
    HalfABatch,
    /// The answers to a batch come backwards.
    AnswersOutOfOrder,
    /// `ON CONFLICT DO UPDATE`: a duplicate brings its own payload.
    DuplicateReplacesPayload,
    /// A duplicate writes `updated_at`, as an upsert that wants the row back does.
    DuplicateTouchesUpdatedAt,
    /// A duplicate is answered with an id of its own, which names nothing.
    DuplicateGetsNewId,
    /// Duplicates are looked for before the batch, not inside it.
    BatchMissesItsOwnDuplicates,
    /// The key is looked up in one step and taken in another.
    DedupeBySelectThenInsert,
    /// A leased job does not hold its key.
    KeyFreeWhileLeased,
    /// A finished job still holds its key.
    KeyTakenAfterTheEnd,
    /// Keys are compared without case, as MySQL does unless it is told otherwise.
    KeysIgnoreCase,
    /// Keys are compared without trailing spaces, as `PAD SPACE` does.
    KeysIgnoreTrailingSpaces,
    /// A key is unique over all queues.
    KeysShareQueues,
    /// Two jobs without a key have the same key.
    NoKeyIsAKey,
    /// A time in the past is stored as it is.
    PastTimeKept,
    /// A delayed job is available at once.
    DelayLost,
    /// A delay is counted from the caller's clock.
    DelayByTheHostsClock,
    /// Times end where MySQL's `TIMESTAMP` does.
    TimesEndIn2038,
    /// Times are stored in milliseconds.
    TimesInMilliseconds,
    /// Integers go through a float.
    PayloadBigIntegersRounded,
    /// Text is stored as ASCII.
    PayloadNonAsciiLost,
    /// An empty object comes back as an empty list, as from Lua's cjson.
    PayloadEmptyObjectsBecomeLists,
    /// Strings lose the white space around them.
    PayloadStringsTrimmed,
    /// Text is cut in the middle of a character.
    PanicsOnNonAsciiPayloads,
    /// Headers are not stored.
    HeadersLost,
    /// Priorities are stored in a smallint.
    PriorityInSixteenBits,
    /// The next id is one more than the largest that is left.
    IdsReusedAfterPrune,
    /// The jobs of one batch get their ids backwards.
    IdsDescendInABatch,
    /// A new job is in epoch 1.
    NewJobInEpochOne,
    /// `updated_at` of a new job is the caller's time.
    NewJobUpdatedByTheHostsClock,
    /// A job that does not say has three attempts.
    AttemptsDefaultToThree,
    /// The queue's default of attempts is ignored.
    PolicysAttemptsIgnored,
    /// The queue's default of attempts replaces what the job says.
    PolicysAttemptsBeatTheJobs,
    /// A new default of attempts is written into the jobs that are there.
    PolicysAttemptsFollow,

    // Leasing
    /// A scheduled job is leased before its time.
    ScheduledServedEarly,
    /// A retrying job is leased before its time.
    RetryingServedEarly,
    /// A passed lease is leased again without a reclaim.
    ExpiredServedWithoutReclaim,
    /// A job without attempts left is leased.
    ExhaustedServed,
    /// Jobs are chosen in one step and leased in another, whoever has them by then.
    DequeueSelectThenUpdate,
    /// A lease spends no attempt.
    AttemptNotSpent,
    /// A lease does not raise the epoch.
    EpochNotRaised,
    /// The attempt is taken for the epoch, so that a snooze gives an epoch again.
    EpochIsTheAttempt,
    /// Snooze and release set the epoch back to 0.
    EpochResetOnRelease,
    /// One more job is leased than asked for.
    LimitPlusOne,
    /// A call leases the last job a second time if there is room.
    SameJobTwice,
    /// Small priorities go first.
    PriorityAscending,
    /// The time of availability plays no part in the order.
    OrderIgnoresAvailability,
    /// The time of availability goes before the priority.
    AvailabilityBeforePriority,
    /// Of two jobs that are otherwise equal the newer goes first.
    TiesBackwards,
    /// Of two jobs that are otherwise equal any goes first.
    OrderLostOnTies,
    /// Named queues are served one after the other.
    QueueByQueue,
    /// The lease does not name its worker.
    WorkerNotWritten,
    /// A lease is counted from the caller's clock.
    LeaseByTheHostsClock,
    /// Every lease lasts a minute.
    LeaseForIgnored,
    /// A lease lasts whole seconds.
    LeaseInWholeSeconds,
    /// Every lease writes `first_leased_at`.
    FirstLeaseOverwritten,
    /// No lease writes `first_leased_at`.
    FirstLeaseNotWritten,
    /// A queue's name is taken for a prefix.
    NameServesLongerNames,
    /// Queue names are compared without case.
    QueueNamesIgnoreCase,
    /// `_` and `%` in a prefix match anything, as in an unescaped `LIKE`.
    PrefixIsALikePattern,
    /// A lease writes `updated_at` of every job.
    DequeueTouchesOthers,
    /// A lease forgets the last error.
    DequeueForgetsTheError,
    /// A lease writes `available_at`.
    DequeueMovesAvailability,
    /// A lease does not write `updated_at`.
    DequeueLeavesUpdatedAt,
    /// A prefix is served queue by queue.
    PrefixDrainsOneQueue,
    /// A prefix is served in one order of all jobs.
    PrefixHasOneOrder,
    /// Every call begins with the first queue.
    TurnsRestartWithEachCall,
    /// The answer shows attempts and lease as they were before.
    AnswerShowsTheOldRow,
    /// The answer is sorted by id, as `UPDATE … RETURNING` may give it.
    AnswerSortedById,
    /// Jobs that wait for their time take places in the page that is looked at.
    WaitingJobsTakePlaces,
    /// A handle that has asked a paused queue a hundred times takes it to be empty up to then, and begins to look there.
    PolledWhilePausedIsEmpty,
    /// A handle that has got nothing a hundred times takes the queue to be empty up to then, whatever is committed later.
    PolledInVainIsEmpty,
    /// A call that finds its jobs taken by others does not look for more.
    RacingCallsComeShort,

    // Verdicts
    /// The outcomes come sorted.
    OutcomesOutOfOrder,
    /// One stale receipt undoes the whole batch.
    StaleItemSpoilsTheBatch,
    /// What comes after a stale receipt is not applied.
    StaleItemStopsTheBatch,
    /// One stale receipt makes the whole batch an error.
    StaleItemIsAnError,
    /// The epoch of a receipt is not looked at.
    AckByIdOnly,
    /// A receipt is good if its worker holds the job, on whatever lease.
    AckByWorkerName,
    /// Only the handle that leased a job may settle it: the receipt is remembered in the process.
    SettleOnlyByTheLessee,
    /// A receipt is still good after its lease was reclaimed, until somebody else gets the job.
    ReclaimedReceiptIsGood,
    /// A heartbeat waits for the row locks of transactions that settle.
    HeartbeatWaitsForTransactions,
    /// A verdict waits for the row locks of transactions that settle.
    SettleWaitsForTransactions,
    /// A batch with a locked job is answered Pending as a whole.
    LockedJobSpoilsTheBatch,
    /// A batch with a locked job fails, as if there were nothing but a lock timeout.
    LockedJobFailsTheBatch,
    /// A locked job is answered LeaseLost.
    LockedJobIsLost,
    /// A verdict that was answered Pending is refused when it is given again.
    PendingVerdictIsDropped,
    /// A stale receipt is refused, but writes `updated_at`.
    StaleAckTouchesUpdatedAt,
    /// A stale receipt is refused, but writes its error.
    StaleRetryWritesError,
    /// A receipt is good while the epoch is the same, lease or none.
    ReceiptGoodWithoutLease,
    /// The result is not kept.
    ResultLost,
    /// A retry waits as the backoff says, whatever delay it brings.
    RetryDelayIgnored,
    /// A retry leaves the lease on the job.
    RetryKeepsTheLease,
    /// A retry does not keep its error.
    RetryForgetsTheError,
    /// A retry spends one more attempt.
    RetrySpendsTwice,
    /// A retry gives the attempt back.
    RetryGivesTheAttemptBack,
    /// A retry raises the epoch.
    RetryRaisesTheEpoch,
    /// A retry waits by the caller's clock.
    RetryByTheHostsClock,
    /// A retry does not write `updated_at`.
    RetryLeavesUpdatedAt,
    /// The backoff has no end.
    BackoffUnbounded,
    /// The backoff is the default one.
    BackoffIgnoresThePolicy,
    /// The backoff is always that of the first attempt.
    BackoffNeverGrows,
    /// The backoff is one doubling ahead.
    BackoffCountsFromZero,
    /// The backoff has no randomness.
    BackoffWithoutJitter,
    /// A retry without a delay waits for nothing.
    BackoffLost,
    /// The last but one retry is a dead letter.
    DeadLetterTooEarly,
    /// A job that fails its last attempt goes back to the queue.
    DeadLetterTooLate,
    /// A dead letter says that its attempts are spent, not why.
    DeadLetterWithoutError,
    /// A job that fails its last attempt is gone.
    DeadLetterLostAtLastAttempt,
    /// A snooze spends the attempt.
    SnoozeBurnsAnAttempt,
    /// A snooze forgets the last error.
    SnoozeForgetsTheError,
    /// A snoozed job is available at once.
    SnoozeDelayIgnored,
    /// A snooze forgets `first_leased_at`.
    SnoozeForgetsTheFirstLease,
    /// A job that is given up is tried again while it has attempts.
    DeadRetriesWhileAttemptsLeft,
    /// A discarded job is recorded as completed.
    DiscardRecordedAsCompleted,
    /// A verdict after the end of the lease is refused.
    LateVerdictRefused,
    /// The receipt is looked at in one step and the verdict applied in another.
    SettleChecksThenActs,
    /// A receipt that stands twice in a batch counts twice.
    ReceiptTwiceCountsTwice,
    /// Every end leaves two rows.
    HistoryWrittenTwice,
    /// The history has no headers.
    HistoryWithoutHeaders,
    /// The history has no payload.
    HistoryWithoutPayload,
    /// The history has no attempts.
    HistoryWithoutAttempts,
    /// The history has no epoch.
    HistoryWithoutEpoch,
    /// The history has no unique key.
    HistoryWithoutKey,
    /// The history has no priority.
    HistoryWithoutPriority,
    /// The history does not say who had the job.
    HistoryWithoutHolder,
    /// The history has no last error.
    HistoryWithoutLastError,
    /// `started_at` is the last lease, not the first.
    HistoryStartsAtTheLastLease,
    /// `created_at` is that of the history row.
    HistoryCreatedAtTheEnd,
    /// `finished_at` is the caller's time.
    HistoryEndsByTheHostsClock,
    /// `finished_at` is the start of the last lease.
    HistoryEndsAtTheLastLease,

    // Heartbeats
    /// A heartbeat adds to the end of the lease, not to now.
    HeartbeatAddsToTheEnd,
    /// A heartbeat counts from the caller's clock.
    HeartbeatByTheHostsClock,
    /// A heartbeat makes a longer lease shorter.
    HeartbeatShortens,
    /// A heartbeat tells the end that was asked for, not the one that holds.
    HeartbeatTellsWhatWasAsked,
    /// A passed lease can be extended.
    HeartbeatRevivesAnExpiredLease,
    /// The epoch of a receipt is not looked at by heartbeats.
    HeartbeatByIdOnly,
    /// A heartbeat that is lost writes `updated_at`.
    LostHeartbeatTouchesUpdatedAt,
    /// The receipt is looked at in one step and the lease written in another.
    HeartbeatChecksThenActs,
    /// The answers to heartbeats come sorted.
    HeartbeatAnswersOutOfOrder,
    /// A receipt that is given twice is answered once.
    HeartbeatAnswersOnce,
    /// One lost lease makes all of the batch lost.
    LostHeartbeatSpoilsTheBatch,
    /// A heartbeat raises the epoch.
    HeartbeatRaisesTheEpoch,
    /// A heartbeat spends an attempt.
    HeartbeatSpendsAnAttempt,
    /// A heartbeat forgets the last error.
    HeartbeatForgetsTheError,

    // Reclaiming
    /// A lease is reclaimed ten minutes before it has passed.
    ReclaimBeforeTheTime,
    /// A reclaimed job goes back to its old place in the queue.
    ReclaimKeepsItsPlace,
    /// A reclaimed job waits as the backoff says, asked for or not.
    ReclaimAlwaysBacksOff,
    /// A job whose last attempt crashed goes back to the queue.
    CrashedLastAttemptRequeued,
    /// A job whose last attempt crashed dies of the error before.
    CrashedDeadLetterKeepsOldError,
    /// A job whose last attempt crashed does not say who had it.
    CrashedDeadLetterWithoutHolder,
    /// A job whose last attempt crashed is gone.
    DeadLetterLostByCrash,
    /// A job without lease and attempts stays for ever.
    ReclaimIgnoresExhausted,
    /// A job without attempts says so, although it has an error.
    ExhaustedForgetsItsError,
    /// A reclaim takes everything.
    ReclaimIgnoresLimit,
    /// After a full page the reclaim goes on one page too far.
    ReclaimSkipsAPage,
    /// Live leases fill the page that the reclaim looks at.
    ReclaimStarvedByLiveLeases,
    /// Passed leases are found in one step and taken in another.
    ReclaimSelectsThenUpdates,
    /// A reclaim gives all attempts back.
    ReclaimResetsAttempts,
    /// A reclaim spends an attempt.
    ReclaimSpendsAnAttempt,
    /// A reclaim gives the attempt back.
    ReclaimGivesTheAttemptBack,
    /// A reclaimed job keeps the error before.
    ReclaimKeepsTheOldError,
    /// Reclaiming leaves the epoch, so that nobody can tell a reclaimed receipt from one that was settled.
    ReclaimKeepsTheEpoch,
    /// A reclaim sets the epoch back to 0.
    ReclaimResetsTheEpoch,
    /// A reclaim does not tell of dead letters.
    ReclaimAnswersOnlyTheRequeued,

    // Administration
    /// A release spends the attempt.
    ReleaseKeepsTheAttempt,
    /// A released job waits for a second.
    ReleaseTakesASecond,
    /// `retry_later` leaves the lease on the job.
    RetryLaterLeavesTheHolder,
    /// `retry_later` gives the attempt back.
    RetryLaterGivesTheAttemptBack,
    /// `retry_later` forgets the last error.
    RetryLaterForgetsTheError,
    /// `retry_later` leaves the job where it was.
    RetryLaterIgnoresTheTime,
    /// `discard` writes the history and leaves the job.
    AdminDiscardLeavesTheRow,
    /// `discard` removes the job and writes nothing.
    AdminDiscardLeavesNoHistory,
    /// `promote` takes a job from its holder.
    PromoteTakesLeased,
    /// `promote` sends a Ready job to the end of its queue.
    PromoteMovesReadyJobs,
    /// A job that is taken from its holder stays in its epoch.
    InterventionKeepsTheEpoch,
    /// There is no error for a job that does not exist.
    UnknownJobIsOk,
    /// There is no error for a job that is finished.
    FinishedJobIsOk,
    /// A finished job is called unknown.
    FinishedJobIsNotFound,

    // Redriving
    /// Completed jobs are redriven too.
    RedriveTakesCompleted,
    /// Dead letters of other queues are redriven.
    RedriveIgnoresQueues,
    /// Dead letters that were not named are redriven.
    RedriveIgnoresIds,
    /// Dead letters of another kind are redriven.
    RedriveIgnoresKind,
    /// All dead letters are redriven at once.
    RedriveIgnoresLimit,
    /// The newest dead letters are redriven first.
    RedriveNewestFirst,
    /// A redriven job has no attempts left.
    RedriveKeepsAttempts,
    /// A redriven job was never leased.
    RedriveForgetsTheFirstLease,
    /// A redriven job has no headers.
    RedriveForgetsHeaders,
    /// A redriven job was created now.
    RedriveIsCreatedAnew,
    /// A redriven job is available since it was created.
    RedriveKeepsTheOldTime,
    /// A redriven job has a new id.
    RedriveGivesANewId,
    /// A redriven job is in epoch 0.
    RedriveResetsTheEpoch,
    /// A dead letter is redriven although a live job has its key.
    RedriveIgnoresKeys,
    /// A taken key ends the redrive.
    ConflictStopsTheRedrive,
    /// Taken keys count for the limit.
    ConflictsCountForTheLimit,
    /// A redriven job has no last error.
    RedriveForgetsTheError,
    /// A redriven job stays in the history.
    RedriveLeavesTheHistoryRow,

    // Looking
    /// `get` does not look into the history.
    GetMissesHistory,
    /// Jobs of other kinds are listed.
    JobsIgnoreKind,
    /// Jobs with other keys are listed.
    JobsIgnoreKey,
    /// Jobs are listed from the oldest, whatever was asked for.
    JobsIgnoreDirection,
    /// A page of jobs begins with the last of the page before.
    JobsPagesOverlap,
    /// Between two pages of jobs one is missing.
    JobsPagesSkip,
    /// Jobs are listed by their state at the caller's time.
    StatesByTheHostsClock,
    /// Finished jobs are listed however they ended.
    HistoryIgnoresStatuses,
    /// Finished jobs of other queues are listed.
    HistoryIgnoresQueues,
    /// Finished jobs are listed from the beginning of time.
    HistoryIgnoresTimes,
    /// `finished_before` includes its own time.
    HistoryTimesIncludeTheEnd,
    /// Finished jobs are listed in the order in which they ended.
    HistoryListedByEnd,
    /// Between two pages of the history one is missing.
    HistoryPagesSkip,
    /// Leases that have just passed are called stuck.
    StuckIgnoresAge,
    /// All stuck jobs are listed.
    StuckIgnoresLimit,
    /// A job is called stuck by its age, not by that of its lease's end.
    StuckCountsFromTheStart,
    /// Every receipt is called good.
    ReceiptsAlwaysHeld,
    /// The receipt that ended its job is called gone.
    ReceiptsForgetFinished,
    /// A receipt is called gone when its lease has passed.
    ReceiptsCallPassedLeasesGone,
    /// Receipts are answered backwards.
    ReceiptsOutOfOrder,
    /// A passed lease is counted as running.
    StatsCountExpiredAsRunning,
    /// A job without attempts is counted as ready.
    StatsCountExhaustedAsReady,
    /// A retrying job is counted as scheduled.
    StatsCountRetryingAsScheduled,
    /// The newest ready job is told instead of the oldest.
    StatsTakeTheNewestReadyJob,
    /// The oldest job is told, ready or not, by its creation.
    StatsTakeTheOldestOfAll,
    /// Dead letters are not counted.
    StatsForgetDeadLetters,
    /// Every finished job is counted as a dead letter.
    StatsCountAllHistoryAsDead,
    /// Only jobs that were never tried are counted by attempts.
    StatsCountAttemptsOfReadyJobsOnly,
    /// A queue that was asked for and is empty is not answered.
    StatsForgetEmptyQueues,
    /// A queue with nothing but dead letters is not answered.
    StatsForgetQueuesOfDeadLetters,
    /// Queues are answered in the wrong order.
    StatsUnsorted,
    /// A finished job is called unknown.
    ExplainForgetsHistory,
    /// A dead letter is called finished.
    ExplainTakesDeadForFinished,
    /// A leased job is called next.
    ExplainLies,
    /// A passed lease is called a lease.
    ExplainTakesPassedForLive,
    /// A retrying job is called scheduled.
    ExplainTakesRetryForSchedule,
    /// A job without attempts is called next.
    ExplainForgetsExhausted,
    /// A paused queue is no reason.
    ExplainForgetsPause,
    /// A concurrency limit is no reason.
    ExplainForgetsTheLimit,
    /// A rate limit is no reason.
    ExplainForgetsTheRate,
    /// The rate limit's tokens are not told, as by the default of `usage`.
    UsageForgetsTokens,
    /// Every ready job is called next.
    ExplainSaysNextForAll,
    /// Nobody is woken for the end of a lease.
    NextForgetsLeases,
    /// Nobody is woken for a job's time.
    NextForgetsWaitingJobs,
    /// Everybody is woken a second late.
    NextIsLate,
    /// A paused queue keeps its workers looking.
    NextIsNowWhilePaused,
    /// A full queue keeps its workers looking.
    NextIsNowAtTheLimit,
    /// A queue without tokens keeps its workers looking.
    NextIsNowWithoutTokens,
    /// A blocked Fifo queue keeps its workers looking.
    NextLooksPastTheFifoHead,

    // Retention
    /// Live jobs are pruned.
    PruneTakesLiveJobs,
    /// Finished jobs of any age are pruned.
    PruneIgnoresAge,
    /// Jobs are pruned however they ended.
    PruneIgnoresStatuses,
    /// Jobs of other queues are pruned.
    PruneIgnoresQueues,
    /// Jobs that were not named are pruned.
    PruneIgnoresIds,
    /// Age is counted by the caller's clock.
    PruneByTheHostsClock,
    /// Age is counted from the creation of the job.
    PruneCountsAgeFromCreation,
    /// Everything is pruned at once.
    PruneIgnoresLimit,
    /// The answer is the limit, not the number.
    PruneCountsWrong,
    /// The shortest retention holds for all queues.
    RetentionOfAnotherQueue,
    /// A queue without a retention keeps nothing.
    RetentionDefaultsToNothing,
    /// Idempotency keys are kept for ever.
    KeysNeverPruned,
    /// Idempotency keys are pruned an hour before their retention has passed.
    KeysPrunedTooEarly,
    /// Idempotency keys must be older than their retention by the age that is asked for.
    KeysPrunedByTheAgeOfJobs,
    /// Every idempotency key is kept for 30 days.
    KeysAreAllKeptAlike,
    /// A prune by retention takes no idempotency keys.
    RetentionTakesNoKeys,
    /// Idempotency keys are pruned whatever the call is restricted to.
    RestrictedPruneTakesKeys,
    /// Idempotency keys are pruned by a call that names statuses.
    NamedStatusesTakeKeys,
    /// All passed idempotency keys are pruned at once.
    PruneLimitIgnoresKeys,
    /// As many idempotency keys as jobs are pruned.
    KeysHaveALimitOfTheirOwn,
    /// Idempotency keys are pruned first.
    KeysPrunedBeforeJobs,
    /// The answer counts the jobs alone.
    PrunedKeysNotCounted,

    // Policies
    /// A paused queue is served.
    PausedServed,
    /// A paused queue takes no jobs.
    PauseRefusesEnqueue,
    /// One lease more than the limit is granted.
    ConcurrencyOffByOne,
    /// Each handle has the limit for itself.
    ConcurrencyPerHandle,
    /// A passed lease does not count for the limit.
    ConcurrencyForgetsPassedLeases,
    /// Leases are counted in one step and granted in another.
    ConcurrencyCountedThenLeased,
    /// The rate limit is not kept.
    RateIgnored,
    /// Each handle has the rate for itself.
    RatePerHandle,
    /// Tokens come back too fast.
    RateRefillsTooFast,
    /// Tokens pile up beyond the burst.
    RateWithoutBurstCap,
    /// A new rate limit starts with the old one's empty bucket.
    ChangedRateKeepsItsBucket,
    /// After the clock was set back, a bucket stays empty until the clock is where it was.
    BucketGoesByAnOldClock,
    /// After the clock was set back, the next token is told for when the clock is where it was.
    UsageGoesByAnOldClock,
    /// A Fifo queue is served by priority.
    FifoServesByPriority,
    /// A Fifo queue grants leases beside the first.
    FifoAllowsTwo,
    /// The second job of a Fifo queue passes a head whose lease has passed.
    FifoSecondPassesPassedLease,
    /// A passed lease behind the head does not block a Fifo queue.
    FifoForgetsPassedLeases,
    /// The second job of a Fifo queue passes a head that waits.
    FifoSecondPassesWaitingHead,
    /// A waiting head of a Fifo queue blocks all queues.
    FifoHeadBlocksOtherQueues,
    /// A lease reaches further than `max_lease`.
    DequeueIgnoresMaxLease,
    /// A heartbeat reaches further than `max_lease`.
    HeartbeatIgnoresMaxLease,
    /// Completed jobs are kept, whatever the archive says.
    ArchiveIgnored,
    /// Discarded jobs are kept, whatever the archive says.
    ArchiveKeepsDiscarded,
    /// With `dead_only` dead letters are lost too.
    ArchiveDropsDeadLetters,
    /// The policy of a prefix goes before that of the queue.
    PrefixBeatsExact,
    /// A shorter prefix goes before a longer one.
    ShorterPrefixWins,
    /// A policy of its own makes a queue forget its prefix's.
    PolicyOfAQueueHidesThePrefix,
    /// Policies of prefixes do not hold.
    PrefixPoliciesIgnored,
    /// A new policy leaves what it does not say.
    SetPolicyMerges,
    /// An empty policy leaves the old one.
    EmptyPolicyRemovesNothing,
    /// A handle goes by the policies that it saw first.
    PoliciesCachedByHandles,
    /// A call over a prefix goes by the policies that its handle knew before, and learns the new ones from it.
    PrefixGoesByOldPolicies,
    /// `on_expiry` is not stored.
    PolicyForgetsOnExpiry,
    /// `max_lease` is not stored.
    PolicyForgetsMaxLease,
    /// `pause` replaces the whole policy.
    PauseWipesThePolicy,
    /// `resume` removes the whole policy.
    ResumeWipesThePolicy,
    /// `resume` does nothing for a queue whose prefix is paused.
    ResumeForgetsTheWiderPause,
    /// A rate limit is accepted although the store does not promise any.
    UnsupportedPolicyAccepted,
    /// A crashed job is Ready at once, whatever the policy says.
    OnExpiryIgnored,
    /// Only one queue of a prefix is served at a time.
    LimitSharedByPrefix,

    // Input
    /// An empty batch is refused.
    EmptyBatchIsAnError,
    /// A batch of any length is accepted.
    BatchLimitIgnored,
    /// A payload of any size is accepted.
    PayloadLimitIgnored,
    /// A result of any size is accepted.
    VerdictLimitIgnored,

    // Wholeness
    /// A finished job is removed in one step and recorded in another.
    HistoryInASecondStep,
    /// A finished job is recorded in one step and removed in another.
    HistoryBeforeTheDelete,
    /// A lease is a delete and an insert, with an await between.
    DequeueDeletesThenInserts,
    /// A dropped call leaves its connection busy.
    DropLeavesTheStoreBusy,
    /// The store tells the caller's time.
    NowIsTheHosts,
    /// The store tells time finer than it keeps it.
    NowHasNanoseconds,
    /// Opening a handle makes the tables anew.
    OpeningWipes,
    /// Everything is gone with the last handle.
    GoneWithTheLastHandle,

    // Transactions
    /// A job is there before the commit, and stays without it.
    EnqueueInVisibleBeforeCommit,
    /// A commit does not look whether its keys were taken meanwhile.
    CommitIgnoresKeys,
    /// A verdict counts before the commit, and without it.
    SettleInCountsAtOnce,
    /// A stale receipt is settled in a transaction without a word.
    SettleInOfAStaleReceiptIsOk,
    /// A verdict outside a transaction is accepted.
    SettleInWithoutTransaction,
    /// `once_in` answers true every time.
    OnceIsTrueTwice,
    /// `once_in` remembers what was rolled back.
    OnceSurvivesRollback,
    /// Two transactions commit with the same key.
    OnceTrueForTwoOpenTransactions,
    /// A key is free from the moment its retention has passed, before it was forgotten.
    PassedKeyIsFree,
    /// A second `once_in` counts the retention anew.
    SecondOnceProlongs,
    /// A duplicate aborts the transaction, as a constraint does in Postgres.
    DuplicateSpoilsTheTransaction,
    /// A lost lease aborts the transaction.
    LostLeaseSpoilsTheTransaction,
    /// A second `once_in` aborts the transaction.
    SecondOnceSpoilsTheTransaction,
    /// A commit goes through although the lease was reclaimed meanwhile.
    CommitForgivesALostLease,
    /// A commit that fails keeps what came before the failure.
    FailedCommitKeepsTheWrites,
    /// Dropping a transaction commits it.
    DroppedTransactionCommits,
    /// Dropping a transaction leaves its lock.
    DroppedTransactionKeepsItsLock,
    /// `lock_in` looks at the receipt and locks nothing.
    LockInDoesNotLock,
    /// `lock_in` accepts a stale receipt.
    LockInOfAStaleReceiptIsOk,
    /// `lock_in` outside a transaction is accepted.
    LockInWithoutTransaction,
    /// A passed lease is reclaimed although a transaction has its job locked.
    ReclaimTakesLockedJobs,
    /// The heartbeat of a passed lease is answered Lost although a transaction has its job locked.
    LockedPassedLeaseIsLost,
    /// A database that has lost its last writes gives the epochs of lost leases again.
    LossRepeatsEpochs,
    /// A database that has lost its last writes gives the ids of lost jobs again.
    LossRepeatsIds,
    /// `settle_in` asks the connection whether its transaction is open, and not the database.
    SettleInAfterTheEnd,
    /// `enqueue_in` does so.
    EnqueueInAfterTheEnd,
    /// `once_in` does so.
    OnceInAfterTheEnd,
    /// `lock_in` does so.
    LockInAfterTheEnd,
    /// `enqueue_in` looks for keys in the transaction's old view of the database.
    OldViewHasKeys,
    /// At READ UNCOMMITTED, `enqueue_in` answers with a job of another open transaction.
    UncommittedJobsHaveKeys,
    /// `settle_in` and `lock_in` look for the lease in the transaction's old view of the database.
    OldViewLosesLeases,
    /// A retry in a transaction ignores its delay.
    SettleInIgnoresTheDelay,
    /// A snooze in a transaction spends the attempt.
    SettleInTakesSnoozeForRetry,

    // Hints and events
    /// A new job wakes nobody.
    NoWakeOnEnqueue,
    /// A committed job wakes nobody.
    NoWakeOnCommit,
    /// A job that comes back from a verdict wakes nobody.
    NoWakeOnRetry,
    /// A job that is sent back by `retry_later` wakes nobody.
    NoWakeOnRetryLater,
    /// A live job with the id of a finished one fails the batch of its verdict.
    TwinFailsTheVerdict,
    /// A live job with the id of a finished one fails every reclaim that meets it.
    TwinStopsReclaim,
    /// A live job with the id of a finished one fails every redrive.
    TwinStopsTheRedrive,
    /// A reclaimed job wakes nobody.
    NoWakeOnReclaim,
    /// A promoted job wakes nobody.
    NoWakeOnPromote,
    /// A redriven job wakes nobody.
    NoWakeOnRedrive,
    /// A place that is free again wakes nobody.
    NoWakeOnTheEndOfALease,
    /// A resumed queue wakes nobody.
    NoWakeOnResume,
    /// Every job wakes everybody.
    WakeForOtherQueues,
    /// Nobody is told of leases.
    EventOfLeaseMissing,
    /// A dead letter is told as a retry.
    DeadLetterToldAsRetry,
    /// Events of one step come backwards.
    EventsOutOfOrder,
    /// Everybody is told of every queue.
    EventsOfOtherQueues,
    /// Events of a transaction come before its commit.
    EventsBeforeCommit,
}

impl Fault {
    /// Whether it can be seen only in a store whose transactions lock rows.
    pub(crate) fn is_of_row_locks(self) -> bool {
        matches!(
            self,
            Self::SettleWaitsForTransactions
                | Self::LockedJobSpoilsTheBatch
                | Self::LockedJobFailsTheBatch
                | Self::LockedJobIsLost
                | Self::PendingVerdictIsDropped
        )
    }

    /// The name of its case: `AckByIdOnly` is `ack_by_id_only`.
    pub(crate) fn case(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}
