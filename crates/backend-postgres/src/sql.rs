//! The statements, with the name of the schema put in.
//!
//! This is the one place where SQL text is changed: `{schema}` becomes the quoted name of a [`Schema`], which was
//! checked, and a list gets its direction.
//!
//! The statements that run all the time are functions of the schema: the server plans such a statement once for each
//! connection instead of on every call, which takes as long as running it, and the plan is made under settings that the
//! function brings along, whoever's connection it runs on.

use std::sync::Arc;

use leasehold_core::{Direction, Queues};

use crate::schema::Schema;

/// What each function is made with. Those of version 6 on have a `search_path` besides, and that migration gives one to those before it (ADR 34). The plan must be right for every argument and for a table that was empty when it was
/// made, so the planner is left no way but the indexes.
const PLANNED_ONCE: &str = "LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET jit = off";

/// The same for those that join a list with the jobs that it names. Both are as long as the batch, and to compare each with each is
/// nothing for ten, and seconds for ten thousand.
const PLANNED_BY_HASH: &str = "LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_nestloop = off
    SET enable_mergejoin = off SET jit = off";

/// The same for those that run seldom and take one of several ways through the indexes: which one depends on the arguments, so each call is
/// planned for its own.
const PLANNED_ANEW: &str = "LANGUAGE plpgsql
    SET plan_cache_mode = force_custom_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off";

macro_rules! statements {
    (
        $(functions of $list:ident: $($function:ident($arguments:literal)),+; only made: [$($made:ident),*];)+
        statements: $($name:ident),+ $(,)?
    ) => {
        $(
            /// What makes the functions of one migration.
            pub(crate) const $list: &[&str] = &[
                $(include_str!(concat!("../queries/", stringify!($function), ".sql")),)+
                $(include_str!(concat!("../queries/", stringify!($made), ".sql")),)*
            ];
        )+

        /// Every statement, ready to be sent.
        pub(crate) struct Statements {
            $($(pub(crate) $function: String,)+)+
            $(pub(crate) $name: String,)+
            jobs: [String; 2],
            jobs_of_one: [String; 2],
            history: [String; 2],
        }

        impl Statements {
            /// The statements for the tables in `schema`.
            pub(crate) fn new(schema: &Schema) -> Arc<Self> {
                Arc::new(Self {
                    $($($function: call(schema, stringify!($function), $arguments),)+)+
                    $($name: put_in(schema, include_str!(concat!("../queries/", stringify!($name), ".sql"))),)+
                    jobs: both_ways(schema, &jobs(ANY, "j.id")),
                    jobs_of_one: both_ways(schema, &jobs(ONE, "j.id + 0")),
                    history: both_ways(schema, include_str!("../queries/history.sql")),
                })
            }
        }
    };
}

// The functions of a migration that was released are never changed, since processes of the old version call them: what takes their
// place is a new function, with a version in its name, in a new migration. The old one stays for as long as they may run, and is
// `only made` if this version does not call it.
statements!(
    functions of FIRST:
    enqueue_first(10),
    enqueue_keyed(10),
    enqueue_one(8),
    heartbeat(3),
    reclaim(1),
    settle(6),
    settle_one(3),
    stats(3);
    only made: [dequeue, dequeue_few, dequeue_limited, dequeue_one, enqueue, facts, settle_done, settle_same];
    functions of SECOND:
    settle_v2(6),
    settle_done_v2(3),
    settle_one_v2(3),
    settle_same_v2(3);
    only made: [];
    functions of THIRD:
    dequeue_v2(12),
    dequeue_few_v2(6),
    dequeue_one_v2(10);
    only made: [dequeue_limited_v2];
    functions of REDRIVE:
    redrive(6);
    only made: [];
    functions of ENQUEUE_MANY_QUEUES:
    enqueue_v2(8);
    only made: [];
    functions of PREFIXES:
    dequeue_limited_v3(8),
    facts_v2(4);
    only made: [];
    statements:
    by_index,
    create_limits,
    discard,
    fold,
    is_finished,
    lock_in,
    locked,
    make_room,
    notify,
    notify_apart,
    notify_events,
    now,
    once,
    pause,
    places,
    policies,
    promote,
    prune,
    receipts,
    record,
    remove_policy,
    reset_rates,
    resume,
    retry_later,
    sees_no_lease,
    set_policy,
    stuck,
);

impl Statements {
    pub(crate) fn jobs(&self, queues: &Queues, direction: Direction) -> &str {
        match queues {
            Queues::Named(names) if names.len() == 1 => &self.jobs_of_one[place(direction)],
            _ => &self.jobs[place(direction)],
        }
    }

    pub(crate) fn history(&self, direction: Direction) -> &str {
        &self.history[place(direction)]
    }
}

/// `text` with the name of the schema in it.
pub(crate) fn put_in(schema: &Schema, text: &str) -> String {
    text.replace("{schema}", &schema.quoted())
        .replace("{planned_once}", PLANNED_ONCE)
        .replace("{planned_by_hash}", PLANNED_BY_HASH)
        .replace("{planned_anew}", PLANNED_ANEW)
}

/// The call of a function with so many arguments.
fn call(schema: &Schema, function: &str, arguments: usize) -> String {
    let arguments: Vec<String> = (1..=arguments).map(|number| format!("${number}")).collect();
    format!("SELECT * FROM {}.{function}({})", schema.quoted(), arguments.join(", "))
}

const ANY: &str = "($1::text[] IS NULL OR j.queue_name = ANY ($1::text[]))";
const ONE: &str = "j.queue_name = ($1::text[])[1]";

/// A list of jobs, by the queues that are meant and by the order in which an index has them.
fn jobs(named: &str, id: &str) -> String {
    include_str!("../queries/jobs.sql").replace("{named}", named).replace("{id}", id)
}

fn both_ways(schema: &Schema, text: &str) -> [String; 2] {
    [("ASC", ">"), ("DESC", "<")].map(|(direction, beyond)| {
        put_in(schema, text).replace("{direction}", direction).replace("{beyond}", beyond)
    })
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::OldestFirst => 0,
        Direction::NewestFirst => 1,
    }
}
