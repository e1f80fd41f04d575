//! Bounds on connections, bytes and rate.

use std::sync::Arc;
use std::time::Instant;

use egress::{Allowance, Gateway, GatewaySettings};
use sandbox::Owner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{connect, echo, lab, open, open_again, serve, settings, soon};

const WIDE: Allowance = Allowance { connections: 1000, bytes: None, rate: None };

#[tokio::test]
async fn too_many_connections_are_refused_until_one_ends() {
    let lab = lab("localhost:*", GatewaySettings { of_sandbox: Allowance { connections: 2, ..WIDE }, ..settings() });
    let port = serve(echo).await;
    let destination = format!("localhost:{port}");
    let first = lab.connect(&destination).await.unwrap();
    let _second = lab.connect(&destination).await.unwrap();
    let answer = lab.connect(&destination).await.unwrap_err();
    assert!(answer.contains("too_many_connections"), "{answer}");
    drop(first);
    let again = soon(async {
        loop {
            if let Ok(stream) = lab.connect(&destination).await {
                return stream;
            }
        }
    });
    again.await;
}

#[tokio::test]
async fn an_owner_has_one_allowance_for_all_sandboxes() {
    let settings = GatewaySettings { of_owner: Allowance { connections: 1, ..WIDE }, ..settings() };
    let gateway = Arc::new(Gateway::new(settings));
    let (_one, first, _) = open(&gateway, "localhost:*", &Owner::local());
    let (_two, second, _) = open(&gateway, "localhost:*", &Owner::local());
    let (_three, third, _) = open(&gateway, "localhost:*", &"somebody-else".parse().unwrap());
    let destination = format!("localhost:{}", serve(echo).await);
    let _held = connect(first, &destination).await.unwrap();
    let answer = connect(second, &destination).await.unwrap_err();
    assert!(answer.contains("too_many_connections"), "{answer}");
    connect(third, &destination).await.unwrap();
}

#[tokio::test]
async fn bytes_that_are_used_up_end_connections_and_refuse_new_ones() {
    const BYTES: u64 = 1_000_000;
    let lab =
        lab("localhost:*", GatewaySettings { of_sandbox: Allowance { bytes: Some(BYTES), ..WIDE }, ..settings() });
    let port = serve(|mut stream| async move {
        let _ = stream.write_all(&vec![7; 4 << 20]).await;
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let mut got = Vec::new();
    soon(stream.read_to_end(&mut got)).await.unwrap_err();
    let usage = lab.door.usage();
    assert_eq!(usage.bytes_in + usage.bytes_out, BYTES);
    let answer = lab.connect(&format!("localhost:{port}")).await.unwrap_err();
    assert!(answer.contains("bytes_used_up"), "{answer}");
    assert_eq!(lab.refused(), [format!("localhost:{port} bytes_used_up 2")]);
}

#[tokio::test]
async fn another_door_of_the_same_sandbox_brings_no_new_allowance() {
    let of_sandbox = Allowance { bytes: Some(100_000), ..WIDE };
    let lab = lab("localhost:*", GatewaySettings { of_sandbox, ..settings() });
    let port = serve(|mut stream| async move {
        let _ = stream.write_all(&vec![7; 1 << 20]).await;
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    soon(stream.read_to_end(&mut Vec::new())).await.unwrap_err();
    let (next, proxy) = open_again(&lab.gateway, "localhost:*", lab.door.account());
    let answer = connect(proxy, &format!("localhost:{port}")).await.unwrap_err();
    assert!(answer.contains("bytes_used_up"), "{answer}");
    assert_eq!(next.usage(), lab.door.usage());
}

#[tokio::test]
async fn a_rate_holds_for_all_connections_together() {
    const RATE: u64 = 2_000_000;
    let lab = lab("localhost:*", GatewaySettings { of_sandbox: Allowance { rate: Some(RATE), ..WIDE }, ..settings() });
    let port = serve(|mut stream| async move {
        let _ = stream.write_all(&vec![7; 1_000_000]).await;
    })
    .await;
    let destination = format!("localhost:{port}");
    let began = Instant::now();
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(lab.connect(&destination).await.unwrap());
    }
    for mut stream in streams {
        let mut got = Vec::new();
        soon(stream.read_to_end(&mut got)).await.unwrap();
        assert_eq!(got.len(), 1_000_000);
    }
    // Four million bytes at two million a second, of which a quarter of a second's may come at once.
    let took = began.elapsed().as_secs_f64();
    assert!(took > 1.5, "the rate was not kept: {took} s");
}
