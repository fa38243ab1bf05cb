//! Servers that say no for a while, and servers that must prove who they are.

use std::io::{Read, Write};
use std::net::TcpListener;

use leasehold_core::{Dequeue, NewJob, Queues, Store, StoreError};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisVersion};

fn job() -> NewJob {
    NewJob::builder("q", "task").payload(&"x".repeat(10_000)).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_full_refuses_whole_batches_and_recovers() {
    let server = Redis::start(RedisVersion::Redis7, &[("maxmemory", "4mb")]).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut accepted = 0;
    let full = loop {
        match store.enqueue(&vec![job(); 10]).await {
            Ok(answers) => accepted += answers.len() as u64,
            Err(error) => break error,
        }
        assert!(accepted < 10_000, "a server of 4 MB has taken {accepted} jobs of 10 kB");
    };
    assert!(full.is_retryable(), "{full:?}");
    assert_eq!(store.stats(&Queues::all()).await.unwrap()[0].live(), accepted);
    assert_eq!(server.command("CONFIG SET maxmemory 0").unwrap(), "+OK");
    store.enqueue(&[job()]).await.unwrap();
    let request = Dequeue::new("q", "w").unwrap().limit(1000).unwrap();
    assert_eq!(store.dequeue(&request).await.unwrap().len() as u64, accepted + 1);
}

/// A real server is loading for too short a time to be met.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            while stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                // One answer for each command that came.
                let commands = bytes.iter().filter(|byte| **byte == b'*').count();
                let answer = "-LOADING Redis is loading the dataset in memory\r\n".repeat(commands);
                if stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
                bytes = [0; 4096];
            }
        }
    });
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_proves_who_it_is() {
    let files = Certificates::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (cert, key, ca) = (files.path("cert"), files.path("key"), files.path("ca"));
    let settings = [
        ("tls-port", port.to_string()),
        ("tls-cert-file", cert),
        ("tls-key-file", key),
        ("tls-ca-cert-file", ca.clone()),
        ("tls-auth-clients", "no".to_owned()),
    ];
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _server = Redis::start(RedisVersion::Redis7, &settings).unwrap();
    let url = format!("rediss://127.0.0.1:{port}/");
    let stranger = RedisStore::connect(&url).await.unwrap_err();
    assert!(matches!(stranger, StoreError::Unavailable { .. }), "{stranger:?}");
    let builder = RedisStore::builder().root_certificate(std::fs::read(ca).unwrap());
    let store = builder.connect(&url).await.unwrap();
    let mut events = store.subscribe(&Queues::all()).await.unwrap();
    store.enqueue(&[job()]).await.unwrap();
    let event =
        tokio::time::timeout(std::time::Duration::from_secs(30), futures_util::StreamExt::next(&mut events));
    assert_eq!(event.await.unwrap().unwrap().unwrap().queue.as_str(), "q");
}

/// An authority and a server's certificate by it, in files that every account may read; gone when this is dropped.
struct Certificates(std::path::PathBuf);

impl Certificates {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("leasehold-redis-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        let authority = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&authority).unwrap();
        let issuer = rcgen::Issuer::new(params, authority);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &issuer).unwrap();
        for (name, text) in [("ca", ca.pem()), ("cert", cert.pem()), ("key", key.serialize_pem())] {
            std::fs::write(files.path(name), text).unwrap();
        }
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.join(format!("{name}.pem")).to_str().unwrap().to_owned()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
