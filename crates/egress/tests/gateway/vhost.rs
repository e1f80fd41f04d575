//! Plain HTTP on connections that are not the proxy's own: the name in each request must be one that may be reached.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::{echo, lab, serve, settings, soon};

type Heads = Arc<Mutex<Vec<String>>>;

/// A server that answers each request with its number, and the heads that came to it. Takes bodies in chunks.
async fn server() -> (u16, Heads) {
    let heads = Heads::default();
    let kept = Arc::clone(&heads);
    let port = serve(move |stream| {
        let heads = Arc::clone(&kept);
        async move {
            let mut stream = BufReader::new(stream);
            for number in 1.. {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                        if !head.is_empty() {
                            heads.lock().unwrap().push(format!("unfinished: {head}"));
                        }
                        return;
                    }
                }
                let mut last = String::new();
                while head.to_ascii_lowercase().contains("chunked") && last != "0\r\n" {
                    last.clear();
                    stream.read_line(&mut last).await.unwrap();
                }
                heads.lock().unwrap().push(head);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n#{number}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    (port, heads)
}

/// All that comes back for these pieces, sent with a pause between them.
async fn say(mut stream: TcpStream, pieces: &[&str]) -> String {
    for piece in pieces {
        stream.write_all(piece.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn requests_for_a_rightful_name_arrive_one_after_the_other() {
    let lab = lab("localhost:*,*.allowed.example:*", settings());
    let (port, heads) = server().await;
    let stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
    let first = format!("GET /one HTTP/1.1\r\nHost: LOCALHOST:{port}\r\nX-Case: kept\r\n\r\n");
    let second =
        "POST /two HTTP/1.1\r\nHost: a.allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answer = say(stream, &[&first, second]).await;
    assert!(answer.contains("#1") && answer.contains("#2"), "{answer}");
    let heads = heads.lock().unwrap();
    assert!(heads[0].starts_with("GET /one HTTP/1.1\r\n") && heads[0].contains("X-Case: kept"), "{heads:?}");
    assert!(heads[1].starts_with("POST /two HTTP/1.1\r\n"), "{heads:?}");
    assert_eq!((lab.refused().len(), lab.door.usage().connections), (0, 1));
}

#[tokio::test]
async fn another_name_is_refused_in_every_request_and_spelling() {
    let lab = lab("localhost:*", settings());
    let (port, heads) = server().await;
    let own = format!("GET /own HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let cases: &[&[&str]] = &[
        &["GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
        &["GET", " /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
        &["\r\n\r\nGET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
        &["FETCH /evil HTTP/1.0\r\nhost:evil.example:80\r\n\r\n"],
        &[&own, "GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
        &["GET http://evil.example/evil HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    ];
    for case in cases {
        let stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
        let answer = say(stream, case).await;
        assert!(
            answer.contains("403 Refused by the sandbox network: host_not_allowed evil.example"),
            "{case:?}: {answer}"
        );
    }
    assert_eq!(lab.refused(), [format!("evil.example:{port} host_not_allowed {}", cases.len())]);
    for case in [
        "GET /evil HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n evil.example\r\n\r\n",
        "GET /evil\tHTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /evil HTTP/1.1\r\nHost: user@localhost\r\n\r\n",
        "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
        let answer = say(stream, &[case]).await;
        assert!(!answer.contains('#'), "{case:?}: {answer}");
    }
    let heads = heads.lock().unwrap();
    assert!(!heads.iter().any(|head| head.contains("evil")), "{heads:?}");
}

#[tokio::test]
async fn other_protocols_are_copied_also_when_they_begin_with_a_word() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    for text in ["PING", "GET key\r\n", "HELLO wor"] {
        let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = vec![0; text.len()];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(answer, text.as_bytes());
        stream.write_all(b" and more").await.unwrap();
        let mut more = [0; 9];
        soon(stream.read_exact(&mut more)).await.unwrap();
        assert_eq!(&more, b" and more");
    }
}

#[tokio::test]
async fn a_websocket_goes_through_and_no_other_protocol_does() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let asked = String::from_utf8(head).unwrap().to_ascii_lowercase().contains("upgrade: websocket");
        let answer = match asked {
            true => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            false => "HTTP/1.1 204 Nothing\r\n\r\n",
        };
        stream.write_all(answer.as_bytes()).await.unwrap();
        echo(stream).await;
    })
    .await;
    for (protocol, status) in [("websocket", "101"), ("h2c", "204")] {
        let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
        let request =
            format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(stream.read_u8()).await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        if protocol == "websocket" {
            stream.write_all(b"\x81\x02hi").await.unwrap();
            let mut frame = [0; 4];
            soon(stream.read_exact(&mut frame)).await.unwrap();
            assert_eq!(&frame, b"\x81\x02hi");
        }
    }
}
