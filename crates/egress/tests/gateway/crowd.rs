//! A thousand connections at once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::{connect, echo, lab, serve, settings, soon, until};

#[tokio::test]
async fn a_thousand_connections_are_all_served() {
    const CROWD: usize = 1000;
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let proxy = lab.proxy;
    let mut connecting = JoinSet::new();
    for _ in 0..CROWD {
        connecting.spawn(async move { connect(proxy, &format!("localhost:{port}")).await.unwrap() });
    }
    let mut streams = soon(connecting.join_all()).await;
    assert_eq!(lab.door.usage().connections, CROWD as u64);
    for (index, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&(index as u64).to_be_bytes()).await.unwrap();
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        assert_eq!(soon(stream.read_u64()).await.unwrap(), index as u64);
    }
    drop(streams);
    let usage = || lab.door.usage();
    until("all bytes are counted", || usage().bytes_in == 8 * CROWD as u64).await;
    assert!(lab.refused().is_empty());
}
