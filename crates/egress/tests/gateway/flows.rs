//! Bytes through a tunnel: both ways, in any order, whole, and told of.

use std::time::Duration;

use sandbox::{EventKind, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{echo, lab, serve, settings, soon, until};

#[tokio::test]
async fn bytes_go_both_ways_and_an_end_in_one_leaves_the_other() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        stream.write_all(format!("{} bytes", request.len()).as_bytes()).await.unwrap();
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    stream.write_all(&[b'x'; 1000]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "1000 bytes");
}

#[tokio::test]
async fn a_server_may_speak_first() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        stream.write_all(b"220 hello").await.unwrap();
        echo(stream).await;
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let mut greeting = [0; 9];
    soon(stream.read_exact(&mut greeting)).await.unwrap();
    assert_eq!(&greeting, b"220 hello");
}

#[tokio::test]
async fn what_is_sent_along_with_the_request_is_not_lost() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
    let request = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\nearly bird");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"early bird") {
        assert!(soon(stream.read_buf(&mut answer)).await.unwrap() > 0, "{:?}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_in_order() {
    const BYTES: usize = 24 << 20;
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        stream.write_all(&pattern(0, BYTES)).await.unwrap();
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let (mut seen, mut buffer) = (0, vec![0; 300_000]);
    loop {
        let read = soon(stream.read(&mut buffer)).await.unwrap();
        if read == 0 {
            break;
        }
        assert!(buffer[..read] == pattern(seen, read), "bytes after {seen} differ");
        seen += read;
        // Long enough that everything on the way is full, now and then.
        if seen % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(seen, BYTES);
    assert_eq!(lab.door.usage().bytes_in, BYTES as u64);
}

#[tokio::test]
async fn a_lot_can_go_both_ways_at_once() {
    const BYTES: usize = 16 << 20;
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let sender = tokio::spawn(async move {
        write.write_all(&pattern(0, BYTES)).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    soon(read.read_to_end(&mut back)).await.unwrap();
    sender.await.unwrap();
    assert!(back == pattern(0, BYTES), "{} bytes came back, or others", back.len());
    let usage = lab.door.usage();
    assert_eq!((usage.connections, usage.bytes_in, usage.bytes_out), (1, BYTES as u64, BYTES as u64));
}

#[tokio::test]
async fn a_connection_that_is_cut_looks_cut() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        stream.write_all(b"half of it").await.unwrap();
        stream.read_u8().await.unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    })
    .await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let mut half = [0; 10];
    soon(stream.read_exact(&mut half)).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let error = soon(stream.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn each_connection_is_told_of_with_its_bytes() {
    let settings = settings();
    let mut events = settings.events.subscribe();
    let lab = lab("localhost:*", settings);
    let port = serve(echo).await;
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    stream.write_all(b"12345").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    soon(stream.read_to_end(&mut back)).await.unwrap();
    let event = soon(events.recv()).await.unwrap();
    let EventKind::Connected { host, port: to, bytes_in, bytes_out, secrets, .. } = event.kind else {
        panic!("{event:?}");
    };
    assert_eq!((host, to), ("localhost".parse::<Host>().unwrap(), port));
    assert_eq!((bytes_in, bytes_out, secrets), (5, 5, Vec::new()));
}

#[tokio::test]
async fn dropping_the_door_ends_everything() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(lab.connect(&format!("localhost:{port}")).await.unwrap());
    }
    let (proxy, gateway) = (lab.proxy, lab.gateway);
    drop(lab.door);
    for mut stream in streams {
        let ended = soon(stream.read_u8()).await;
        assert!(ended.is_err(), "a byte came from nowhere");
    }
    let refused = || std::net::TcpStream::connect(proxy).is_err();
    until("the listener is closed", refused).await;
    drop(gateway);
}

/// Bytes whose place can be told.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}
