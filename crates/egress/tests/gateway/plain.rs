//! Plain HTTP through the proxy.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ask, lab, serve, settings, soon};

/// Answers with the head it got, as a body.
async fn mirror(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive, X-Hop\r\n\
         X-Hop: 1\r\nX-End: 2\r\n\r\n",
        head.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.write_all(&head).await.unwrap();
}

#[tokio::test]
async fn a_request_is_sent_on_without_what_was_meant_for_the_proxy() {
    let lab = lab("localhost:*", settings());
    let port = serve(mirror).await;
    let request = format!(
        "GET http://LOCALHOST:{port}/a/b?c=d HTTP/1.1\r\nHost: other.example\r\nAccept: x\r\nConnection: close, X-Mine\r\n\
         X-Mine: 1\r\nProxy-Authorization: Basic abc\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\r\n"
    );
    let answer = ask(lab.proxy, request.as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(head.contains("X-End: 2") && !head.contains("X-Hop") && !head.contains("Keep-Alive"), "{head}");
    let mut lines: Vec<&str> = body.trim_end().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["Accept: x", "GET /a/b?c=d HTTP/1.1", &format!("Host: localhost:{port}")]);
}

#[tokio::test]
async fn one_connection_carries_requests_to_several_hosts() {
    let lab = lab("localhost:*", settings());
    let (first, second) = (serve(mirror).await, serve(mirror).await);
    let one = format!("GET http://localhost:{first}/1 HTTP/1.1\r\nHost: x\r\n\r\n");
    let other = format!("GET http://localhost:{second}/2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let denied = "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = ask(lab.proxy, format!("{one}{denied}{other}").as_bytes()).await;
    for expected in ["GET /1 HTTP/1.1", "HTTP/1.1 403", "GET /2 HTTP/1.1"] {
        assert!(answer.contains(expected), "{expected} is not in {answer}");
    }
    assert_eq!(lab.refused(), ["evil.example:80 host_not_allowed 1"]);
    assert_eq!(lab.door.usage().connections, 2);
}

#[tokio::test]
async fn an_answer_without_a_body_keeps_its_length() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await.unwrap();
        crate::support::echo(stream).await;
    })
    .await;
    let request = format!("HEAD http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = ask(lab.proxy, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("Content-Length: 1234\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_body_that_waits_to_be_asked_for_is_asked_for() {
    let lab = lab("localhost:*", settings());
    let port = serve(mirror).await;
    let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
    let head = format!(
        "POST http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.starts_with(b"HTTP/1.1 100 Continue\r\n\r\n") {
        assert!(soon(stream.read_buf(&mut answer)).await.unwrap() > 0);
    }
    stream.write_all(b"body").await.unwrap();
    while !answer.windows(15).any(|window| window == b"HTTP/1.1 200 OK") {
        assert!(soon(stream.read_buf(&mut answer)).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn bodies_are_streamed_in_both_directions() {
    let lab = lab("localhost:*", settings());
    // Sends each piece of the body back as soon as it came: works only if nobody waits for the end of it.
    let port = serve(|mut stream| async move {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(stream.read_u8().await.unwrap());
        }
        assert!(seen.windows(26).any(|window| window.eq_ignore_ascii_case(b"transfer-encoding: chunked")));
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
        crate::support::echo(stream).await;
    })
    .await;
    let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
    let head = format!("POST http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    for piece in ["first", "second", "third"] {
        stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.unwrap();
        while !seen.windows(piece.len()).any(|window| window == piece.as_bytes()) {
            assert!(soon(stream.read_buf(&mut seen)).await.unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
        }
    }
    assert_eq!(lab.door.usage().connections, 1);
}

#[tokio::test]
async fn what_is_no_request_to_a_proxy_is_answered_as_such() {
    let lab = lab("localhost:*", settings());
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "400"),
        ("GET https://localhost/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "400"),
        ("GET http://user:password@localhost/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400"),
        ("GET http://127.1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400"),
        ("GET http://localhost:0/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400"),
        ("CONNECT localhost HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400"),
        ("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = ask(lab.proxy, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_head_that_would_fill_memory_is_not_taken_from_a_host() {
    let lab = lab("localhost:*", settings());
    let port = serve(|mut stream| async move {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await.unwrap();
        let large = "x".repeat(250 << 10);
        let _ = stream
            .write_all(format!("HTTP/1.1 200 OK\r\nX-Large: {large}\r\nContent-Length: 0\r\n\r\n").as_bytes())
            .await;
        // Until the proxy has had enough.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let request = format!("GET http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = ask(lab.proxy, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{}", &answer[..answer.len().min(200)]);
}
