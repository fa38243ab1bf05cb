//! Being told to end by the operating system.

use tokio::signal;

/// SIGTERM and SIGINT; Ctrl-C where there are no such signals.
pub(crate) struct Signals {
    #[cfg(unix)]
    term: signal::unix::Signal,
    #[cfg(unix)]
    int: signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> std::io::Result<Self> {
        use signal::unix::{SignalKind, signal};
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    #[allow(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next one.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        if signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
