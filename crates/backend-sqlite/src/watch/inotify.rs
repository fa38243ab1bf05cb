//! Watching files by inotify.

use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;

use super::Bell;

/// How long the thread rests after a look at what was written. What comes meanwhile is one event then.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// File systems that may be written to without this machine's knowledge: NFS, SMB (three versions), CIFS, 9P, FUSE, Ceph, AFS, Lustre, GPFS, VirtualBox.
const REMOTE: [u32; 11] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x0102_1997,
    0x6573_5546,
    0x00C3_6400,
    0x5346_414F,
    0x0BD0_0BD0,
    0x4750_4653,
    0x786F_4256,
];

/// The watcher of this process, as long as it watches anything.
static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

struct Watcher {
    inotify: OwnedFd,
    /// Written to when the thread is to end.
    stop: OwnedFd,
    watches: Mutex<Watches>,
}

/// By the number of the watch: a file, however many names it has.
type Watches = HashMap<i32, Vec<Arc<Bell>>>;

/// A file that is watched, until this is dropped.
pub(crate) struct Watching {
    watcher: Arc<Watcher>,
    watch: i32,
    bell: Arc<Bell>,
}

/// Rings the bell whenever somebody writes to the file, or says why that cannot be.
pub(crate) fn watch(path: &Path, bell: Arc<Bell>) -> Result<Watching, String> {
    let kind = rustix::fs::statfs(path).map_err(|error| error.to_string())?.f_type;
    if u32::try_from(kind & 0xFFFF_FFFF).is_ok_and(|kind| REMOTE.contains(&kind)) {
        return Err("it is on a network file system".to_owned());
    }
    let mut current = locked(&WATCHER);
    let watcher = match &*current {
        Some(watcher) => Arc::clone(watcher),
        None => Watcher::start().map_err(|error| error.to_string())?,
    };
    let flags = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
    let mut watches = locked(&watcher.watches);
    let added = add_watch(&watcher.inotify, path, flags).map_err(|error| error.to_string());
    match added {
        Ok(watch) => {
            watches.entry(watch).or_default().push(Arc::clone(&bell));
            drop(watches);
            *current = Some(Arc::clone(&watcher));
            Ok(Watching { watcher, watch, bell })
        }
        Err(error) => {
            let is_new = current.is_none();
            drop(watches);
            if is_new {
                watcher.stop();
            }
            Err(error)
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut current = locked(&WATCHER);
        let mut watches = locked(&self.watcher.watches);
        if let Some(bells) = watches.get_mut(&self.watch) {
            bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if bells.is_empty() {
                watches.remove(&self.watch);
                // The file may be gone, and its watch with it.
                let _gone = remove_watch(&self.watcher.inotify, self.watch);
            }
        }
        if watches.is_empty() {
            self.watcher.stop();
            *current = None;
        }
    }
}

impl Watcher {
    /// Starts the thread.
    fn start() -> std::io::Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            watches: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("leasehold-watch".to_owned());
        let watched = Arc::clone(&watcher);
        thread.spawn(move || watched.run())?;
        Ok(watcher)
    }

    fn stop(&self) {
        // It is a counter in memory: this has no way to fail.
        let _written = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Rings the bells of files that were written to, until it is stopped.
    fn run(&self) {
        while self.wait(true, None) {
            for watch in self.read() {
                let bells = locked(&self.watches).get(&watch).cloned().unwrap_or_default();
                bells.iter().for_each(|bell| bell.ring());
            }
            if !self.wait(false, Some(&REST)) {
                return;
            }
        }
    }

    /// Waits for events, if those are asked for, or until the time is over. False if it was stopped.
    fn wait(&self, for_events: bool, time: Option<&Timespec>) -> bool {
        let stop = PollFd::new(&self.stop, PollFlags::IN);
        let mut both = [stop.clone(), PollFd::new(&self.inotify, PollFlags::IN)];
        loop {
            let fds = if for_events { &mut both[..] } else { &mut both[..1] };
            match poll(fds, time) {
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "files are not watched any more");
                    return false;
                }
                Ok(_) => return both[0].revents().is_empty(),
            }
        }
    }

    /// What was written to since the last look.
    fn read(&self) -> BTreeSet<i32> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        let mut written = BTreeSet::new();
        while let Ok(event) = events.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                written.extend(locked(&self.watches).keys());
            }
            written.insert(event.wd());
        }
        written
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
