//! Rooms: many queues in order, by few workers, on every backend.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests may")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::{EventKind, JobKind, NewJob, Queues, Store};
use leasehold_scenarios::{Backend, Counted, Crew, Gate, Ground, Message, Span, fifo, fill, in_order};
use leasehold_worker::{Context, Worker, WorkerEvent, WorkerHandle};
use tokio::sync::{mpsc, watch};

/// Slots of a worker.
const SLOTS: usize = 10;

/// Makes a test of each of these scenarios for each backend.
macro_rules! on_every_backend {
    ($($scenario:ident),*) => {
        on_every_backend!(@memory Memory $($scenario)*);
        on_every_backend!(@sqlite Sqlite $($scenario)*);
        on_every_backend!(@postgres Postgres $($scenario)*);
        on_every_backend!(@mysql Mysql $($scenario)*);
        on_every_backend!(@mariadb Mariadb $($scenario)*);
        on_every_backend!(@redis Redis $($scenario)*);
        on_every_backend!(@valkey Valkey $($scenario)*);
        on_every_backend!(@cluster Cluster $($scenario)*);
    };
    (@$module:ident $backend:ident $($scenario:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(leasehold_scenarios::Backend::$backend).await;
            })*
        }
    };
}

on_every_backend!(
    queues_nobody_has_heard_of_are_served_in_order_and_in_parallel,
    ten_slots_serve_thousands_of_queues,
    a_busy_queue_does_not_starve_the_others
);

/// What handlers of a test share.
struct Scene {
    spans: mpsc::UnboundedSender<Span>,
    running: Mutex<BTreeSet<String>>,
    /// The most queues that were served at once.
    most: watch::Sender<usize>,
    /// Handlers wait until so many are.
    wanted: usize,
}

/// One worker of a scene.
#[derive(Clone)]
struct Part {
    scene: Arc<Scene>,
    gate: Option<Arc<Gate>>,
}

impl Scene {
    fn new(wanted: usize) -> (Arc<Self>, mpsc::UnboundedReceiver<Span>) {
        let (spans, handled) = mpsc::unbounded_channel();
        (Arc::new(Self { spans, running: Mutex::default(), most: watch::Sender::new(0), wanted }), handled)
    }
}

async fn handle(message: Message, context: Context<Part>) {
    let (scene, queue, began) = (&context.state().scene, context.queue().to_string(), Span::now());
    let count = {
        let mut running = scene.running.lock().unwrap();
        assert!(running.insert(queue.clone()) || scene.wanted == 0, "{queue} is served twice at once");
        running.len()
    };
    scene.most.send_if_modified(|most| count > std::mem::replace(most, count.max(*most)));
    scene.most.subscribe().wait_for(|most| *most >= scene.wanted).await.unwrap();
    if let Some(gate) = &context.state().gate {
        gate.pass().await;
    }
    scene.running.lock().unwrap().remove(&queue);
    scene.spans.send(Span { queue, place: message.place, began, ended: Span::now() }).unwrap();
}

fn worker(store: Arc<dyn Store>, queues: &str, part: Part) -> WorkerHandle {
    let worker = Worker::builder(store).queue(queues).concurrency(SLOTS).state(part);
    worker.handle::<Message>(handle).start().unwrap()
}

async fn take(handled: &mut mpsc::UnboundedReceiver<Span>, count: usize) -> Vec<Span> {
    let mut spans = Vec::with_capacity(count);
    while spans.len() < count {
        spans.push(handled.recv().await.unwrap());
    }
    spans
}

fn rooms(count: usize) -> Vec<String> {
    (0..count).map(|room| format!("room:{room:05}")).collect()
}

/// Fourteen queues of five messages, A1 to N5, for a consumer that was there before all of them.
async fn queues_nobody_has_heard_of_are_served_in_order_and_in_parallel(backend: Backend) {
    let ground = Ground::new(backend).await.unwrap();
    let store = ground.open().await.unwrap();
    fifo(&*store, "room:*").await.unwrap();
    let queues: Vec<String> = ('A'..='N').map(|letter| format!("room:{letter}")).collect();
    let (scene, mut handled) = Scene::new(SLOTS);
    let worker = worker(ground.open().await.unwrap(), "room:*", Part { scene, gate: None });
    let mut told = store.subscribe(&"room:*".parse::<Queues>().unwrap()).await.unwrap();
    let mut leased = worker.events();
    for place in 1..=5 {
        for queue in &queues {
            let job = NewJob::builder(queue.as_str(), Message::KIND).payload(&Message { place });
            store.enqueue(&[job.build().unwrap()]).await.unwrap();
        }
    }
    let spans = take(&mut handled, 70).await;
    in_order(&spans, &queues, 5).unwrap();

    let mut discovered = BTreeSet::new();
    while discovered.len() < queues.len() {
        if store.capabilities().events {
            let event = told.next().await.unwrap().unwrap();
            if event.kind == EventKind::Enqueued {
                discovered.insert(event.queue.to_string());
            }
        } else if let WorkerEvent::Leased { queue, .. } = leased.recv().await.unwrap() {
            discovered.insert(queue.to_string());
        }
    }
    assert!(discovered.into_iter().eq(queues));
    worker.shutdown(Duration::from_secs(10)).await.unwrap();
}

/// Two processes with ten slots each: order inside each queue, and no more operations per job than with one queue.
async fn ten_slots_serve_thousands_of_queues(backend: Backend) {
    let (count, messages) = (queues_of(backend), 10);
    let jobs = count * messages as usize;
    let one = operations(backend, &["lobby".to_owned()], jobs as u32).await;
    let many = operations(backend, &rooms(count), messages).await;
    let ratio = many / one;
    println!("{backend}: operations per job, one queue {one:.3}, {count} queues {many:.3}: {ratio:.2}");
    assert!(ratio <= 1.2, "{ratio:.2} times as many operations");
}

/// As many as there is time for; `LEASEHOLD_SCENARIO_QUEUES` says otherwise.
fn queues_of(backend: Backend) -> usize {
    match (std::env::var("LEASEHOLD_SCENARIO_QUEUES"), backend) {
        (Ok(count), _) => count.parse().unwrap(),
        (Err(_), Backend::Memory | Backend::Redis) => 10_000,
        (Err(_), _) => 1_000,
    }
}

/// Operations per job.
async fn operations(backend: Backend, queues: &[String], messages: u32) -> f64 {
    let ground = Ground::new(backend).await.unwrap();
    let store = ground.open().await.unwrap();
    fifo(&*store, "room:*").await.unwrap();
    fill(&*store, queues, messages).await.unwrap();
    let jobs = queues.len() * messages as usize;
    let pattern = format!("{}*", &queues[0][..5.min(queues[0].len())]);
    let operations = if backend == Backend::Memory {
        in_this_process(&ground, queues, messages).await
    } else {
        let program = Path::new(env!("CARGO_BIN_EXE_scenario-worker"));
        let crew = Crew::start(program, &ground, &pattern, 2, SLOTS).unwrap();
        let (spans, finding) = crew.handled(jobs).await.unwrap();
        if queues.len() > 1 {
            in_order(&spans, queues, messages).unwrap();
        }
        println!("{backend}: {} queues, at most {} KiB per process", queues.len(), finding.memory_kib);
        finding.operations
    };
    operations as f64 / jobs as f64
}

/// Two workers on a store that no other process can reach.
async fn in_this_process(ground: &Ground, queues: &[String], messages: u32) -> u64 {
    let (scene, mut handled) = Scene::new(0);
    let jobs = queues.len() * messages as usize;
    let pattern = if queues.len() > 1 { "room:*" } else { "lobby" };
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (store, counts) = Counted::new(ground.open().await.unwrap());
        let part = Part { scene: Arc::clone(&scene), gate: Some(Arc::new(Gate::new(SLOTS))) };
        workers.push((worker(store, pattern, part), counts));
    }
    let spans = take(&mut handled, jobs).await;
    if queues.len() > 1 {
        in_order(&spans, queues, messages).unwrap();
    }
    let mut operations = 0;
    for (worker, counts) in workers {
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
        operations += counts.total();
    }
    operations
}

/// One queue with very many jobs, beside many with few: the small ones are done before three times as much is done as they
/// have.
async fn a_busy_queue_does_not_starve_the_others(backend: Backend) {
    let ground = Ground::new(backend).await.unwrap();
    let store = ground.open().await.unwrap();
    let small = rooms(999);
    fill(&*store, &["room:busy".to_owned()], 100_000).await.unwrap();
    fill(&*store, &small, 10).await.unwrap();
    let (scene, mut handled) = Scene::new(0);
    let worker = worker(ground.open().await.unwrap(), "room:*", Part { scene, gate: None });
    let (mut left, mut done) = (small.len() * 10, 0);
    while left > 0 {
        let span = handled.recv().await.unwrap();
        done += 1;
        left -= usize::from(span.queue != "room:busy");
    }
    worker.shutdown(Duration::from_secs(10)).await.unwrap();
    let ratio = f64::from(done) / (small.len() * 10) as f64;
    println!("{backend}: the small queues were done after {ratio:.2} times their jobs");
    assert!(ratio <= 3.0, "{ratio:.2}");
}
