//! The files of the database: who may read them, and what happens when they are deleted or replaced.

use std::error::Error;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, LeaseFor, NewJob, Queues, Store, StoreError, TxStore, Verdict};
use leasehold_sqlite::{SqliteStore, TxError, transaction};

/// How long it may take until a store has looked at its files: a bound, not a wait.
const SOON: Duration = Duration::from_secs(20);

fn job() -> NewJob {
    NewJob::builder("q", "k").build().unwrap()
}

/// Enqueues until that is refused, and says how.
async fn refusal(store: &SqliteStore, what: &str) -> StoreError {
    let start = Instant::now();
    loop {
        match store.enqueue(&[job()]).await {
            Ok(_) => assert!(start.elapsed() < SOON, "jobs are accepted still: {what}"),
            Err(error) => return error,
        }
    }
}

fn words(error: &StoreError) -> String {
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    error.source().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_on_a_file_that_was_deleted() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut conn = store.connection().await.unwrap();
    store.enqueue(&[job(), job()]).await.unwrap();
    let leased = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
    let receipt = leased[0].receipt();
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", directory.file())).unwrap();
    }
    let refused = words(&refusal(&store, "after rm").await);
    assert!(refused.contains("jobs.db is gone since it was opened"), "{refused}");
    assert!(refused.contains("connect again"), "{refused}");
    let jobs = [job()];
    let in_transaction = transaction(&mut conn, async |conn| {
        store.enqueue_in(conn, &jobs).await?;
        Ok::<_, TxError>(())
    });
    let errors = [
        store.settle(&[(receipt, Verdict::done())]).await.unwrap_err(),
        store.heartbeat(&[receipt], LeaseFor::new(Duration::from_secs(60)).unwrap()).await.unwrap_err(),
        store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap_err(),
        store.stats(&Queues::all()).await.unwrap_err(),
        store.get(receipt.job).await.unwrap_err(),
        match in_transaction.await {
            Err(TxError::Store(error)) => error,
            other => panic!("{other:?}"),
        },
        store.connection().await.err().unwrap(),
    ];
    for error in errors {
        assert!(words(&error).contains("is gone"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_when_another_file_was_moved_over_it() {
    let (store, directory) = crate::support::fresh_store().await;
    let (_other, backup) = crate::support::fresh_store().await;
    fs::rename(backup.file(), directory.file()).unwrap();
    let refused = words(&refusal(&store, "after mv").await);
    assert!(refused.contains("jobs.db is another file since it was opened"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_without_the_log_or_its_directory() {
    let (store, directory) = crate::support::fresh_store().await;
    fs::remove_file(format!("{}-wal", directory.file())).unwrap();
    let refused = words(&refusal(&store, "after rm of the log").await);
    assert!(refused.contains("jobs.db-wal is gone"), "{refused}");

    let (store, directory) = crate::support::fresh_store().await;
    drop(directory);
    let refused = words(&refusal(&store, "after rm of the directory").await);
    assert!(refused.contains("jobs.db is gone"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_comes_back_is_used_again() {
    let (store, directory) = crate::support::fresh_store().await;
    store.enqueue(&[job()]).await.unwrap();
    let folder = std::path::PathBuf::from(directory.file()).parent().unwrap().to_owned();
    let aside = folder.with_extension("aside");
    fs::rename(&folder, &aside).unwrap();
    refusal(&store, "in a directory that was moved away").await;
    let live = store.stats(&Queues::all()).await;
    assert!(live.is_err(), "{live:?}");
    fs::rename(&aside, &folder).unwrap();
    store.enqueue(&[job()]).await.unwrap();
    assert!(store.stats(&Queues::all()).await.unwrap()[0].live() >= 2);
}

fn mode(file: &str) -> u32 {
    fs::metadata(file).unwrap().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_can_read_a_new_file() {
    let directory = crate::support::Directory::new();
    let file = directory.file();
    let link = format!("{file}-link");
    std::os::unix::fs::symlink("behind-a-link.db", &link).unwrap();
    for file in [&file, &link] {
        let store = SqliteStore::connect(file).await.unwrap();
        store.migrate().await.unwrap();
        store.enqueue(&[job()]).await.unwrap();
    }
    let behind = file.replace("jobs.db", "behind-a-link.db");
    let store = SqliteStore::connect(&file).await.unwrap();
    let behind_a_link = SqliteStore::connect(&link).await.unwrap();
    for file in [&file, &behind] {
        for end in ["", "-wal", "-shm"] {
            assert_eq!(mode(&format!("{file}{end}")), 0o600, "{file}{end}");
        }
    }
    let folder = std::path::Path::new(&file).parent().unwrap();
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 7, "{left:?}");
    drop((store, behind_a_link));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_there_keeps_its_mode() {
    let directory = crate::support::Directory::new();
    let file = directory.file();
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
    let store = SqliteStore::connect(&file).await.unwrap();
    store.migrate().await.unwrap();
    for end in ["", "-wal", "-shm"] {
        assert_eq!(mode(&format!("{file}{end}")), 0o664, "{end}");
    }
}

/// The directory is that of the whole process: in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_relative_path_names_one_file_for_ever() {
    const FOLDER: &str = "LEASEHOLD_FILES_FOLDER";
    if let Ok(folder) = std::env::var(FOLDER) {
        std::env::set_current_dir(&folder).unwrap();
        let store = SqliteStore::connect("jobs.db").await.unwrap();
        store.migrate().await.unwrap();
        std::env::set_current_dir("/").unwrap();
        let mut conn = store.connection().await.unwrap();
        let jobs = [job()];
        let done =
            transaction(&mut conn, async |conn| Ok::<_, TxError>(store.enqueue_in(conn, &jobs).await?));
        done.await.unwrap();
        assert_eq!(store.stats(&Queues::all()).await.unwrap()[0].live(), 1);
        return;
    }
    let directory = crate::support::Directory::new();
    let folder = std::path::PathBuf::from(directory.file()).parent().unwrap().to_owned();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "files::a_relative_path_names_one_file_for_ever"]).env(FOLDER, folder);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
