//! Clients that mean no good. Whatever they send, the next one is served.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::support::{Lab, echo, lab, serve, settings, soon};

async fn still_serves(lab: &Lab, port: u16) {
    let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"ping");
}

#[tokio::test]
async fn garbage_hurts_nobody_else() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let endless_header = [b"GET http://localhost/ HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 1 << 20]].concat();
    let many_headers = ["GET http://localhost/ HTTP/1.1\r\n".to_owned(), "A: b\r\n".repeat(100_000)].concat();
    let smuggled = format!(
        "POST http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello"
    );
    for garbage in [
        b"\0".repeat(100_000),
        b"\xff\xfe\r\n\r\n".to_vec(),
        vec![22, 3, 1, 0, 200, 1],
        b"CONNECT \r\n\r\n".to_vec(),
        b"CONNECT localhost:99999999999 HTTP/1.1\r\n\r\n".to_vec(),
        b"CONNECT [::1 HTTP/1.1\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x05\x01\x00".to_vec(),
        endless_header,
        many_headers.into_bytes(),
        smuggled.into_bytes(),
    ] {
        let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
        // It may be cut off in the middle of it.
        let _ = soon(stream.write_all(&garbage)).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
        still_serves(&lab, port).await;
    }
}

#[tokio::test]
async fn silent_clients_and_half_requests_hold_nobody_up() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    let mut held = Vec::new();
    for index in 0..200 {
        let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
        if index % 2 == 0 {
            stream.write_all(b"CONNECT localhost:1 HTT").await.unwrap();
        }
        held.push(stream);
    }
    still_serves(&lab, port).await;
    drop(held);
}

#[tokio::test]
async fn more_silent_clients_than_there_is_room_for_are_turned_away() {
    let narrow = egress::Allowance { connections: 10, bytes: None, rate: None };
    let lab = lab("localhost:*", egress::GatewaySettings { of_sandbox: narrow, ..settings() });
    let mut held = Vec::new();
    for _ in 0..400 {
        // Those beyond are reset at once, some of them before this side has noticed that it is connected.
        held.extend(TcpStream::connect(lab.proxy).await);
    }
    if let Some(mut last) = held.pop().filter(|_| held.len() == 399) {
        assert!(soon(last.read_u8()).await.is_err());
    }
    assert!(lab.door.usage().refused > 0);
    drop(held);
    let port = serve(echo).await;
    // Those that left make room, as soon as the door has seen that they did.
    let served = async { while lab.connect(&format!("localhost:{port}")).await.is_err() {} };
    soon(served).await;
}

#[tokio::test]
async fn garbage_to_the_resolver_is_dropped() {
    let lab = lab("localhost:*", settings());
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for length in [0, 1, 11, 12, 13, 100, 512, 4096, 60_000] {
        for fill in [0, 0xc0, 0xff] {
            socket.send_to(&vec![fill; length], lab.names).await.unwrap();
        }
    }
    let good = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x09localhost\x00\x00\x01\x00\x01";
    let mut answer = [0; 512];
    let answered = async {
        loop {
            socket.send_to(good, lab.names).await.unwrap();
            let reply = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut answer)).await;
            if reply.is_ok_and(|reply| reply.is_ok()) && answer[..2] == [0x12, 0x34] {
                return;
            }
        }
    };
    soon(answered).await;
    assert_eq!(answer[3] & 0xf, 0);
}
