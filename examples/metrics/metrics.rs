//! What a worker tells Prometheus. The page is served for one visitor, who is this program itself.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::time::Duration;

use leasehold::prelude::*;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Serialize, Deserialize)]
struct Parcel {
    weight: u32,
}

impl JobKind for Parcel {
    const KIND: &'static str = "parcel";
}

async fn ship(parcel: Parcel, _: Context) -> Result<(), String> {
    if parcel.weight > 8 { Err(format!("{} kg are too heavy", parcel.weight)) } else { Ok(()) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Any recorder of the `metrics` facade will do. Without one, nothing is counted and nothing is paid.
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener, prometheus));

    let store = leasehold::connect("memory:").await?;
    let parcels = (1..=10).map(|weight| NewJob::of("parcels", &Parcel { weight }).max_attempts(1).build());
    store.enqueue(&parcels.collect::<Result<Vec<_>, _>>()?).await?;
    let worker = Worker::builder(store)
        .queue("parcels")
        .handle::<Parcel>(ship)
        .sample_queues(Duration::from_millis(10)) // in earnest: every minute or so
        .start()?;
    while worker.stats().completed + worker.stats().dead_lettered < 10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;

    println!("GET http://{address}/metrics\n");
    let page = get(address).await?;
    let told: Vec<&str> =
        page.lines().filter(|line| line.starts_with("leasehold_") && !line.contains("quantile")).collect();
    told.iter().for_each(|line| println!("{line}"));
    worker.shutdown(Duration::from_secs(1)).await?;
    let shipped = r#"leasehold_settled_total{queue="parcels",kind="parcel",fate="completed"} 8"#;
    if !told.contains(&shipped) {
        return Err("eight parcels were shipped, and nobody told".into());
    }
    Ok(())
}

/// Serves the page, whatever is asked for.
async fn serve(listener: TcpListener, prometheus: PrometheusHandle) -> std::io::Result<()> {
    loop {
        let (mut visitor, _) = listener.accept().await?;
        let mut request = [0; 1024];
        let _ = visitor.read(&mut request).await?;
        let page = prometheus.render();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", page.len());
        visitor.write_all(head.as_bytes()).await?;
        visitor.write_all(page.as_bytes()).await?;
    }
}

async fn get(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut server = TcpStream::connect(address).await?;
    server.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await?;
    let mut page = String::new();
    server.read_to_string(&mut page).await?;
    Ok(page)
}
