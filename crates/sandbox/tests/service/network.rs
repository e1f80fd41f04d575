use sandbox::{Denial, ErrorKind, JobPlace, JobRequest, JobWork, Network, SandboxSpec};

use crate::support::{World, create, kind, owner, persistent, seconds, shell, spec};

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

#[tokio::test]
async fn what_was_refused_is_told_by_the_run_that_tried_it() {
    let world = World::new();
    let service = world.process().await;
    let sandbox = create(&service, SandboxSpec { network: network("a.example"), ..spec() }).await;
    let script = "connect a.example 443; connect b.example 443; connect b.example 443; connect a.example 22";
    let activity = shell(&service, &sandbox.id, script).await.unwrap().outcome.network;
    assert_eq!((activity.usage.connections, activity.usage.refused), (1, 3));
    let refused: Vec<_> = activity.refused.iter().map(|one| (one.host.to_string(), one.denial, one.count)).collect();
    assert_eq!(
        refused,
        [("b.example".to_owned(), Denial::HostNotAllowed, 2), ("a.example".to_owned(), Denial::PortNotAllowed, 1)]
    );
    let next = shell(&service, &sandbox.id, "connect a.example 80").await.unwrap().outcome.network;
    assert_eq!((next.usage.connections, next.usage.refused, next.refused.len()), (1, 0, 0));
    let usage = service.usage(&owner(), &sandbox.id).await.unwrap().network.unwrap();
    assert_eq!((usage.connections, usage.refused), (2, 3));
}

#[tokio::test]
async fn without_a_network_there_is_nothing_to_tell() {
    let world = World::new();
    let service = world.process().await;
    let sandbox = create(&service, spec()).await;
    let captured = shell(&service, &sandbox.id, "connect a.example 443").await.unwrap();
    assert_eq!(captured.stderr.to_text(), "connect: network is unreachable\n");
    assert_eq!(captured.outcome.network, Default::default());
    assert_eq!(service.usage(&owner(), &sandbox.id).await.unwrap().network, None);
}

#[tokio::test]
async fn a_secret_needs_a_network() {
    let world = World::new();
    let service = world.process().await;
    let secrets = [("KEY".parse().unwrap())].into();
    let refused = service.create(&owner(), SandboxSpec { secrets, ..spec() }).await;
    assert_eq!(kind(refused), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_job_knows_the_network_of_its_sandbox() {
    let world = World::new();
    let service = world.process().await;
    let command = |line: &str| JobWork::Command(sandbox::ExecRequest::shell(line, seconds(10)).unwrap());
    let kept = create(&service, SandboxSpec { network: network("a.example"), ..spec() }).await;
    let fresh = SandboxSpec { network: network("internet"), ..spec() };
    for (place, expected) in
        [(JobPlace::Existing(kept.id), "a.example"), (JobPlace::Fresh(Box::new(fresh)), "internet")]
    {
        let job = service.start_job(&owner(), JobRequest::new(place, command("connect a.example 443"))).unwrap();
        assert_eq!(job.network(), &network(expected));
        assert_eq!(job.wait().await.unwrap().outcome.network.usage.connections, 1);
    }
}

#[tokio::test]
async fn another_process_finds_a_sandbox_with_its_network() {
    let world = World::new();
    let first = world.process().await;
    let lab = SandboxSpec { network: network("*.example:8443"), ..persistent("lab") };
    create(&first, lab).await;
    let second = world.process().await;
    assert_eq!(second.find(&owner(), "lab").await.unwrap().network, network("*.example:8443"));
}
