//! What the service itself costs on the way of a run.

use std::time::{Duration, Instant};

use sandbox::{Engine, ExecRequest, SandboxId};

use crate::support::{World, create, owner, seconds, spec};

/// A tenth of this is the goal in an optimised build; the bound is for a slow machine without optimisation.
const BOUND: Duration = Duration::from_millis(1);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_through_the_service_costs_little_more_than_the_engine() {
    let world = World::new();
    let engine = world.engine();
    let service = world.process().await;
    let request = ExecRequest::new(["true"], seconds(10)).unwrap();
    let (mut direct, mut served) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let started = Instant::now();
        let id = SandboxId::random().unwrap();
        engine.create(&id, &spec()).await.unwrap();
        engine.start(&id, &request).await.unwrap().control.wait().await.unwrap();
        engine.destroy(&id).await.unwrap();
        direct.push(started.elapsed());

        let started = Instant::now();
        let info = create(&service, spec()).await;
        service.exec(&owner(), &info.id, request.clone()).await.unwrap().wait().await.unwrap();
        service.stop(&owner(), &info.id).await.unwrap();
        served.push(started.elapsed());
    }
    let (direct, served) = (median(direct), median(served));
    println!("engine alone {direct:?}, with the service {served:?}");
    assert!(served < direct + BOUND, "engine alone {direct:?}, with the service {served:?}");
}
