//! URLs that are understood and URLs that are not. A password is shown for neither.

use super::{ConnectError, SCHEMES, connect};

const SECRET: &str = "s3cret";

/// All that can be read in an error.
fn everything(error: &ConnectError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        text.push_str(&format!(" {error} {error:?} {error:#?}"));
        next = error.source();
    }
    text
}

#[tokio::test(flavor = "current_thread")]
async fn what_cannot_be_opened_says_what_to_do() {
    for url in ["mongodb://x", "mongodb:x", "MongoDB://x"] {
        let error = connect(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::UnknownScheme { .. }), "{url}: {error}");
        assert!(error.to_string().starts_with("no backend for \"mongodb\": a URL begins with `"), "{error}");
        assert!(error.to_string().contains("`postgres:`"), "{error}");
    }
    for url in ["", "nonsense", "memory", ":memory:", "://x", "/var/lib/jobs.db"] {
        let error = connect(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::NoScheme { .. }), "{url}: {error}");
        assert!(error.to_string().starts_with("no scheme: a URL begins with `memory:`, "), "{error}");
    }
    for (schemes, feature, _) in SCHEMES.iter().filter(|(.., enabled)| !enabled) {
        for scheme in *schemes {
            let error = connect(&format!("{scheme}://x")).await.unwrap_err();
            assert!(error.to_string().contains(&format!("--features {feature}")), "{error}");
        }
    }
}

/// Connection strings of other libraries, and URLs that something was left out of.
#[tokio::test(flavor = "current_thread")]
async fn what_is_no_url_is_not_shown() {
    for url in [
        "host=db user=ada password=s3cret dbname=app",
        "Server=db;Uid=ada;Pwd=s3cret;",
        "Server=tcp:db,1433;User ID=ada;Password=s3cret;",
        "jdbc:postgresql://db/jobs?user=ada&password=s3cret",
        "ada:s3cret@db:5432/jobs",
        "s3cret@db:5432",
        "s3cret:5432",
        "//ada:s3cret@db/jobs",
        "DATABASE_URL=postgres://ada:s3cret@db/jobs",
        "\"postgres://ada:s3cret@db/jobs\"",
        "mongodb://ada:s3cret@db/jobs",
    ] {
        let error = connect(url).await.unwrap_err();
        let shown = everything(&error);
        assert!(!shown.contains(SECRET), "{url}: {shown}");
        assert!(shown.contains("a URL begins with `memory:`"), "{url}: {shown}");
    }
}

#[cfg(feature = "memory")]
#[tokio::test(flavor = "current_thread")]
async fn capitals_and_spaces_around_do_no_harm() {
    for url in ["memory:", " memory:", "MEMORY:", "\tMemory:\n"] {
        assert!(connect(url).await.is_ok(), "{url:?}");
    }
}

/// `fn main() -> Result<(), Box<dyn Error>>` shows an error by `{:?}`.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "current_thread")]
async fn what_main_shows_is_for_people() {
    let error = connect("sqlite:///no/such/directory/jobs.db").await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.starts_with("the store cannot be opened: connect failed: "), "{shown}");
    assert!(shown.ends_with("its directory does not exist; make that first"), "{shown}");
}

/// A server that is not there, and URLs that a backend refuses.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
#[tokio::test(flavor = "current_thread")]
async fn a_password_is_not_repeated() {
    let log = log::Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let servers =
        SCHEMES.iter().filter(|(_, feature, enabled)| *enabled && !matches!(*feature, "memory" | "sqlite"));
    for scheme in servers.flat_map(|(schemes, ..)| *schemes) {
        for rest in [
            "ada:s3cret@127.0.0.1:1/0",
            "ada:s3cret@127.0.0.1:port/0",
            "ada:x@s3cret@127.0.0.1:1/0",
            "ada:1/s3cret@127.0.0.1:1/0",
            "ada:1/0?s3cret@127.0.0.1:1/0",
            "ada:1#s3cret@127.0.0.1:1/0",
            "127.0.0.1:1/0?password=s3cret",
            "ada:s3cret",
            "/no/such/socket?user=ada&pass=s3cret",
        ] {
            let url = format!("{scheme}://{rest}");
            let error = connect(&url).await.unwrap_err();
            let shown = everything(&error);
            assert!(matches!(error, ConnectError::Store(_)), "{url}: {shown}");
            assert!(!shown.contains(SECRET), "{url}: {shown}");
        }
    }
    assert!(!log.text().contains(SECRET), "{}", log.text());
    #[cfg(feature = "postgres")]
    {
        let error = connect("postgres://ada:s3cret@localhost:1/jobs").await.unwrap_err();
        assert!(error.to_string().contains("is the server running"), "{error}");
    }
}

/// Keeps what is logged, also by the drivers.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
mod log {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    #[derive(Clone, Default)]
    pub(super) struct Log(Arc<Mutex<String>>);

    impl Log {
        pub(super) fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl Visit for Log {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut self.clone());
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}

/// What the backend says first tells which one it is, and whether it is encrypted.
#[cfg(feature = "redis")]
mod redis {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use leasehold_core::StoreError;

    use super::{ConnectError, SECRET, connect, everything};

    /// The first byte that comes in. Then the connection is closed.
    fn first_byte<S: Read>(accept: impl FnOnce() -> S + Send + 'static) -> JoinHandle<u8> {
        std::thread::spawn(move || {
            let mut byte = [0];
            accept().read_exact(&mut byte).unwrap();
            byte[0]
        })
    }

    async fn refused(url: &str) {
        let error = connect(url).await.unwrap_err();
        let shown = everything(&error);
        assert!(matches!(error, ConnectError::Store(StoreError::Unavailable { .. })), "{url}: {shown}");
        assert!(!shown.contains(SECRET), "{url}: {shown}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn with_two_s_it_is_encrypted() {
        const HANDSHAKE: u8 = 0x16;
        for (scheme, expected) in [
            ("redis", b'*'),
            ("rediss", HANDSHAKE),
            (" REDISS", HANDSHAKE),
            ("valkey", b'*'),
            ("valkeys", HANDSHAKE),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let first = first_byte(move || listener.accept().unwrap().0);
            refused(&format!("{scheme}://ada:s3cret@127.0.0.1:{port}/")).await;
            assert_eq!(first.join().unwrap(), expected, "{scheme}");
        }
    }

    #[cfg(unix)]
    #[tokio::test(flavor = "current_thread")]
    async fn a_socket_of_this_machine_is_reached() {
        let path = std::env::temp_dir().join(format!("leasehold-{}.sock", std::process::id()));
        for scheme in ["redis+unix", "valkey+unix", "unix", "Redis+Unix"] {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let first = first_byte(move || listener.accept().unwrap().0);
            refused(&format!("{scheme}://{}?user=ada&pass=s3cret", path.display())).await;
            std::fs::remove_file(&path).unwrap();
            assert_eq!(first.join().unwrap(), b'*', "{scheme}");
        }
    }
}
