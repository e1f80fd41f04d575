use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode};
use sandbox::Denial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::stand_in::{Sandbox, StandIn};
use super::super::{Secret, SecretValue, Vault};
use crate::inspect::{Inspect, Unreached};

const HOST: &str = "api.example.com";
const VALUE: &str = "sk-canary/\"1\"+é";

fn to(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", HOST)
}

async fn one_secret() -> (StandIn, Sandbox) {
    let host = StandIn::new(&[HOST]).await;
    let sandbox = Sandbox::new(&host, &[("KEY", VALUE, HOST, None)]);
    (host, sandbox)
}

#[tokio::test]
async fn the_host_gets_the_value_and_the_sandbox_the_placeholder() {
    let (host, mut sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let basic = STANDARD.encode(format!("user:{mark}"));
    let seen = client
        .send(
            to("POST", &format!("/mirror?key={mark}"))
                .header("x-key", &mark)
                .header("authorization", format!("Basic {basic}")),
            "",
        )
        .await;
    let got = host.last();
    assert_eq!(got.headers["x-key"].as_bytes(), VALUE.as_bytes());
    assert_eq!(got.headers["authorization"], format!("Basic {}", STANDARD.encode(format!("user:{VALUE}"))));
    assert_eq!(got.uri, "/mirror?key=sk-canary%2F%221%22%2B%C3%A9");
    assert_eq!(seen.headers["x-key"], mark);
    assert_eq!(seen.status, StatusCode::OK);
    assert!(!seen.text().contains("canary"), "{}", seen.text());
    assert!(!seen.text().contains(&STANDARD.encode(format!("user:{VALUE}"))[10..]), "{}", seen.text());
    drop(client);
    assert_eq!(sandbox.told().await, ["KEY"]);
}

#[tokio::test]
async fn a_secret_for_reading_goes_with_no_other_request() {
    let host = StandIn::new(&[HOST]).await;
    let header = Some("Authorization: Bearer {}".parse().unwrap());
    let value = SecretValue::new("canary-value").unwrap();
    let secret = Secret::new("KEY".parse().unwrap(), value, vec![HOST.parse().unwrap()], header).unwrap();
    let mut vault = Vault::default();
    vault.insert(secret.for_reading());
    let sandbox = Sandbox::with_vault(&host, vault, std::slice::from_ref(&host.root));
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    for method in ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "get"] {
        let seen = client.send(to(method, "/mirror"), "").await;
        assert_eq!(seen.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert!(seen.text().contains("GET and HEAD alone"), "{}", seen.text());
    }
    let seen = client.send(to("GET", "/mirror").header("X-HTTP-Method-Override", "PUT"), "").await;
    assert_eq!(seen.status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(host.got.lock().unwrap().is_empty());
    for method in ["GET", "HEAD"] {
        assert_eq!(client.send(to(method, "/mirror"), "").await.status, StatusCode::OK, "{method}");
        assert_eq!(host.last().headers["authorization"], "Bearer canary-value");
    }
}

#[tokio::test]
async fn a_body_is_filled_and_its_length_is_right() {
    let (host, mut sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let json = format!("{{\"key\": \"{mark}\"}}");
    let seen = client.send(to("POST", "/echo").header("content-type", "application/json"), json.clone()).await;
    let got = host.last();
    let value: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(value["key"], VALUE);
    assert_eq!(got.headers["content-length"], got.body.len().to_string());
    assert_eq!(seen.text(), json);
    drop(client);
    assert_eq!(sandbox.told().await, ["KEY"]);
}

#[tokio::test]
async fn a_body_in_pieces_is_filled_and_its_answer_masked_across_them() {
    let (host, sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let text = format!("before {mark} between {mark}{mark} after");
    for size in [1, 7, 40] {
        let pieces = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let seen = client.send_pieces(to("POST", "/pieces").header("te", "trailers"), pieces).await;
        assert_eq!(host.last().body, text.replace(&mark, VALUE).as_bytes());
        assert_eq!(host.last().headers["transfer-encoding"], "chunked");
        assert_eq!(seen.text(), text);
        assert_eq!(seen.trailers["x-after"], text);
    }
}

#[tokio::test]
async fn a_large_body_streams() {
    let (host, sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let text = format!("{}{mark}{}", "x".repeat(1 << 20), "y".repeat(1 << 20));
    let seen = client.send(to("POST", "/echo"), text.clone()).await;
    assert!(host.last().body == text.replace(&mark, VALUE).as_bytes());
    assert_eq!(host.last().headers["transfer-encoding"], "chunked");
    assert!(seen.text() == text);
}

#[tokio::test]
async fn every_spelling_of_the_value_is_masked_in_an_answer() {
    let (_host, sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let hex: String = VALUE.bytes().map(|byte| format!("{byte:02X}")).collect();
    let json = serde_json::to_string(VALUE).unwrap();
    let body = format!("{VALUE} {hex} {json} {} sk-canary%2f%221%22%2B%c3%a9", STANDARD.encode(VALUE));
    let seen = client.send(to("POST", "/echo").header("content-type", "text/plain"), body).await;
    let masked = format!("{mark} {mark} \"{mark}\" {mark}");
    assert!(seen.text().starts_with(&masked), "{}", seen.text());
    assert!(seen.text().ends_with(&mark), "{}", seen.text());
    assert!(!seen.text().contains("canary"), "{}", seen.text());
}

#[tokio::test]
async fn the_phrase_of_a_status_line_tells_nothing() {
    let (_host, sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let seen = client.send(to("POST", "/phrase"), mark).await;
    assert_eq!((seen.status, seen.phrase), (StatusCode::OK, None));
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_refused() {
    let (host, sandbox) = one_secret().await;
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let request = to("POST", "/gzip").header("accept-encoding", "gzip").header("range", "bytes=0-3");
    let seen = client.send(request, "secret bytes").await;
    assert_eq!(seen.status, StatusCode::BAD_GATEWAY);
    assert!(seen.text().contains("compressed") && !seen.text().contains("secret bytes"), "{}", seen.text());
    assert_eq!(host.last().headers["accept-encoding"], "identity");
    assert!(!host.last().headers.contains_key("range"));
    assert_eq!(client.send(to("POST", "/echo"), "again").await.text(), "again");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_passed_as_whole() {
    let (_host, sandbox) = one_secret().await;
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let seen = client.send(to("POST", "/cut"), mark).await;
    assert!(seen.status == StatusCode::OK && seen.body.is_err(), "{seen:?}");
}

#[tokio::test]
async fn nothing_is_sent_to_a_host_with_the_wrong_certificate() {
    for (certified, trusted) in [(&["other.example.com"][..], true), (&[HOST], false)] {
        let host = StandIn::new(certified).await;
        let roots = if trusted { vec![host.root.clone()] } else { Vec::new() };
        let secret = ("KEY", VALUE, HOST, Some("Authorization: Bearer {}"));
        let mut sandbox = Sandbox::trusting(&host, &[secret], &roots);
        let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
        let seen = client.send(to("POST", "/echo"), sandbox.placeholder("KEY")).await;
        assert_eq!(seen.status, StatusCode::BAD_GATEWAY);
        assert!(seen.text().contains("certificate") && seen.text().contains("nothing was sent"), "{}", seen.text());
        assert!(host.got.lock().unwrap().is_empty());
        assert_eq!(*host.connections.lock().unwrap(), 1);
        drop(client);
        assert_eq!(sandbox.told().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_client_that_asks_for_another_name_is_refused() {
    let (host, sandbox) = one_secret().await;
    assert!(sandbox.encrypted(HOST, 443, "other.example.com").await.is_err());
    assert_eq!(sandbox.refused(), [("other.example.com".to_owned(), Denial::HostNotAllowed)]);
    assert_eq!(*host.connections.lock().unwrap(), 0);
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let request = Request::get("/mirror").header("host", "other.example.com").header("x-key", "1");
    assert_eq!(client.send(request, "").await.status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(*host.connections.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_secret_goes_to_its_own_host_and_port_only() {
    let host = StandIn::new(&[HOST, "other.example.com"]).await;
    let mut sandbox = Sandbox::new(
        &host,
        &[
            ("KEY", VALUE, HOST, Some("X-Key: {}")),
            ("OTHER", "other-canary", "other.example.com", None),
            ("ODD", "third-canary", "api.example.com:8443", None),
        ],
    );
    let marks = ["KEY", "OTHER", "ODD"].map(|name| sandbox.placeholder(name)).join(" ");
    for (name, port, expected, told) in [
        (HOST, 443, "sk-canary/\"1\"+é, other, odd", vec!["KEY"]),
        ("other.example.com", 443, "key, other-canary, odd", vec!["OTHER"]),
        (HOST, 8443, "key, other, third-canary", vec!["ODD"]),
        (HOST, 9443, "key, other, odd", vec![]),
    ] {
        let mut client = sandbox.encrypted(name, port, name).await.unwrap();
        let host_header = if port == 443 { name.to_owned() } else { format!("{name}:{port}") };
        let seen = client.send(Request::post("/echo").header("host", host_header), marks.clone()).await;
        let [key, other, odd]: [&str; 3] = expected.split(", ").collect::<Vec<_>>().try_into().unwrap();
        let keep = |shown: &str, kept: &str, name: &str| {
            if shown == kept { sandbox.placeholder(name) } else { shown.to_owned() }
        };
        let got = host.last();
        let expected = [keep(key, "key", "KEY"), keep(other, "other", "OTHER"), keep(odd, "odd", "ODD")].join(" ");
        assert_eq!(String::from_utf8(got.body).unwrap(), expected);
        assert_eq!(got.headers.contains_key("x-key"), told.contains(&"KEY"));
        assert_eq!(seen.text(), marks);
        drop(client);
        assert_eq!(sandbox.told().await, told);
    }
    let wants = |name: &str, port| sandbox.prepared.inspector.wants(&name.parse().unwrap(), port);
    assert!(wants(HOST, 443) && wants(HOST, 80) && wants(HOST, 8443));
    assert!(!wants(HOST, 22) && !wants("sub.api.example.com", 443) && !wants("127.0.0.1", 443));
}

#[tokio::test]
async fn over_plain_http_nothing_is_put_in_and_answers_are_masked() {
    let host = StandIn::new(&[HOST]).await;
    let mut sandbox = Sandbox::new(&host, &[("KEY", VALUE, "api.example.com:*", Some("X-Key: {}"))]);
    let mark = sandbox.placeholder("KEY");
    let mut client = sandbox.plain(HOST, 80).await;
    let seen = client.send(to("POST", "/echo"), format!("{mark} {VALUE}")).await;
    assert_eq!(host.last().body, format!("{mark} {VALUE}").as_bytes());
    assert!(!host.last().headers.contains_key("x-key"));
    assert_eq!(seen.text(), format!("{mark} {mark}"));
    drop(client);
    assert!(sandbox.told().await.is_empty());
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let (host, sandbox) = one_secret().await;
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    for number in 0..5 {
        let text = number.to_string();
        assert_eq!(client.send(to("POST", "/echo"), text.clone()).await.text(), text);
    }
    assert_eq!(*host.connections.lock().unwrap(), 1);
    for _ in 0..2 {
        assert_eq!(client.send(to("POST", "/close"), "closed").await.text(), "closed");
        assert_eq!(client.send(to("POST", "/echo"), "again").await.text(), "again");
    }
    assert_eq!(*host.connections.lock().unwrap(), 3);
}

#[tokio::test]
async fn what_is_not_http_is_refused() {
    let (host, sandbox) = one_secret().await;
    let (mut stream, served) = sandbox.connect(HOST, 443);
    stream.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    assert!(matches!(served.await.unwrap(), Err(Unreached::Refused(Denial::NotHttp))));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty());
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let request = to("GET", "/").header("connection", "upgrade").header("upgrade", "websocket");
    let seen = client.send(request, "").await;
    assert_eq!(seen.status, StatusCode::NOT_IMPLEMENTED);
    assert!(seen.text().contains("WebSocket"), "{}", seen.text());
    assert_eq!(*host.connections.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_host_that_is_not_there_is_told() {
    let (host, sandbox) = one_secret().await;
    drop(host);
    tokio::task::yield_now().await;
    let mut client = sandbox.encrypted(HOST, 443, HOST).await.unwrap();
    let seen = client.send(to("GET", "/"), "").await;
    assert_eq!(seen.status, StatusCode::BAD_GATEWAY);
    assert!(seen.text().contains("does not answer"), "{}", seen.text());
}
