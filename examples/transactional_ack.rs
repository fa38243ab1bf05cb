//! A bank that survives `kill -9`: each transfer and the settlement of its job are one transaction, so that whatever dies
//! when, the books balance and no transfer is made twice.
//!
//! The bank is a process of its own, which is killed again and again until all transfers are made.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use diesel::sql_types::{BigInt, Integer};
use diesel::{QueryableByName, RunQueryDsl, SqliteConnection, sql_query};
use leasehold::JobFilter;
use leasehold::prelude::*;
use leasehold::sqlite::{SqliteStore, TxError, transaction};
use serde::{Deserialize, Serialize};

const ACCOUNTS: i32 = 5;
const EACH: i64 = 1000;
const TRANSFERS: usize = 300;

#[derive(Serialize, Deserialize)]
struct Transfer {
    from: i32,
    to: i32,
    cents: i64,
}

impl JobKind for Transfer {
    const KIND: &'static str = "transfer";
}

/// The handler: two accounts, a line in the ledger and the job, all in one transaction.
async fn transfer(transfer: Transfer, context: Context<SqliteStore>) -> Result<Settled, TxError> {
    let store = context.state();
    let mut conn = store.connection().await?;
    let move_money = async |conn: &mut SqliteConnection| {
        book(conn, transfer.from, -transfer.cents)?;
        book(conn, transfer.to, transfer.cents)?;
        sql_query("INSERT INTO ledger (job) VALUES (?)")
            .bind::<BigInt, _>(context.id().get())
            .execute(conn)?;
        // If this process was believed dead and somebody else has the job, this is an error, and all is rolled back.
        Ok(store.ack_in(conn, &context.receipt(), Json::null()).await?)
    };
    transaction(&mut conn, move_money).await
}

fn book(conn: &mut SqliteConnection, account: i32, cents: i64) -> diesel::QueryResult<usize> {
    let statement = sql_query("UPDATE accounts SET cents = cents + ? WHERE id = ?");
    statement.bind::<BigInt, _>(cents).bind::<Integer, _>(account).execute(conn)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        return bank(Path::new(&path)).await;
    }
    let folder = std::env::temp_dir().join(format!("leasehold-bank-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = watch(&folder.join("bank.db")).await;
    std::fs::remove_dir_all(&folder)?;
    result
}

/// The process that is killed: works until there is nothing left.
async fn bank(path: &Path) -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::connect(&path.to_string_lossy()).await?;
    let worker = Worker::builder(std::sync::Arc::new(store.clone()))
        .state(store)
        .queue("bank")
        .lease(Duration::from_millis(500))
        .poll_interval(Duration::from_millis(100))
        .handle_tx::<Transfer>(transfer)
        .start()?;
    worker.run_until_signal().await?;
    Ok(())
}

/// The one that kills it.
async fn watch(path: &Path) -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::connect(&path.to_string_lossy()).await?;
    store.migrate().await?;
    let mut conn = store.connection().await?;
    sql_query("CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)").execute(&mut conn)?;
    // Without a unique key: were a transfer made twice, it would be seen here.
    sql_query("CREATE TABLE ledger (job INTEGER NOT NULL)").execute(&mut conn)?;
    for account in 0..ACCOUNTS {
        let open = sql_query("INSERT INTO accounts (id, cents) VALUES (?, ?)");
        open.bind::<Integer, _>(account).bind::<BigInt, _>(EACH).execute(&mut conn)?;
    }
    let transfers = (0..TRANSFERS).map(|n| {
        let (from, to) = (n as i32 % ACCOUNTS, (n as i32 * 3 + 1) % ACCOUNTS);
        // A killed attempt is a spent one, and there will be many.
        NewJob::of("bank", &Transfer { from, to, cents: n as i64 }).max_attempts(1000).build()
    });
    store.enqueue(&transfers.collect::<Result<Vec<_>, _>>()?).await?;
    println!("{TRANSFERS} transfers between {ACCOUNTS} accounts of {EACH} each");

    let mut kills = 0;
    for round in 0_u64.. {
        let mut bank = start(path)?;
        let left = wait(&store, Duration::from_millis(100 + 37 * (round % 7))).await?;
        if left == 0 {
            stop(&mut bank)?;
            break;
        }
        bank.kill()?; // SIGKILL
        bank.wait()?;
        kills += 1;
        if kills % 5 == 0 {
            println!("   killed {kills} times, {left} transfers to go");
        }
        if kills > 500 {
            return Err("the bank gets nowhere".into());
        }
    }
    println!("   killed {kills} times in all\n");
    audit(&mut conn)
}

fn start(path: &Path) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).arg(path).spawn()
}

fn stop(bank: &mut Child) -> std::io::Result<()> {
    bank.kill()?;
    bank.wait().map(drop)
}

/// Waits until there is nothing left, but not longer than `most`. How many transfers are left.
async fn wait(store: &SqliteStore, most: Duration) -> Result<usize, StoreError> {
    let mut left = usize::MAX;
    for _ in 0..10 {
        tokio::time::sleep(most / 10).await;
        left = 0;
        let mut filter = JobFilter::default();
        loop {
            let page = store.jobs(&filter).await?;
            left += page.items.len();
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(left)
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

fn audit(conn: &mut SqliteConnection) -> Result<(), Box<dyn Error>> {
    let mut ask = |question: &str| -> Result<i64, Box<dyn Error>> {
        let answer: Number = sql_query(question).get_result(conn)?;
        Ok(answer.number)
    };
    let money = ask("SELECT sum(cents) AS number FROM accounts")?;
    let lines = ask("SELECT count(*) AS number FROM ledger")?;
    let jobs = ask("SELECT count(DISTINCT job) AS number FROM ledger")?;
    println!("The audit");
    println!("   money in the bank: {money}, as at the beginning: {}", i64::from(ACCOUNTS) * EACH);
    println!("   lines in the ledger: {lines}, of {jobs} different transfers");
    let all = i64::try_from(TRANSFERS)?;
    if (money, lines, jobs) != (i64::from(ACCOUNTS) * EACH, all, all) {
        return Err("the books do not balance".into());
    }
    println!("   the books balance");
    Ok(())
}
