//! What is refused, by which rule, and who is told.

use sandbox::{Denial, EventKind, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use crate::support::{Lab, echo, lab, serve, settings, soon};

#[tokio::test]
async fn a_refusal_says_host_port_rule_and_what_to_ask_for() {
    let settings = settings();
    let mut events = settings.events.subscribe();
    let lab = lab("localhost:1,a.example", settings);
    let answer = lab.connect("other.example:443").await.unwrap_err();
    assert!(answer.starts_with("HTTP/1.1 403 Refused by the sandbox network: host_not_allowed other.example:443\r\n"));
    assert!(answer.contains("ask for a network that names other.example:443"), "{answer}");
    let answer = lab.connect("A.Example.:22").await.unwrap_err();
    assert!(answer.contains("port_not_allowed") && answer.contains("a.example:22"), "{answer}");
    lab.connect("other.example:443").await.unwrap_err();
    assert_eq!(lab.refused(), ["other.example:443 host_not_allowed 2", "a.example:22 port_not_allowed 1"]);
    assert_eq!(lab.door.usage().refused, 3);
    assert_eq!(lab.door.usage().connections, 0);
    let event = soon(events.recv()).await.unwrap();
    let host: Host = "other.example".parse().unwrap();
    assert_eq!(event.kind, EventKind::ConnectionRefused { host, port: Some(443), denial: Denial::HostNotAllowed });
}

#[tokio::test]
async fn nobody_reaches_this_machine_by_any_spelling() {
    let port = serve(echo).await;
    let lab = lab("internet", egress::GatewaySettings::default());
    for (host, rule) in [
        ("127.0.0.1", "private_address"),
        ("127.0.0.2", "private_address"),
        ("localhost", "private_address"),
        ("LOCALHOST.", "private_address"),
        ("[::1]", "private_address"),
        ("[::ffff:127.0.0.1]", "private_address"),
        ("[::ffff:7f00:1]", "private_address"),
        ("[64:ff9b::7f00:1]", "private_address"),
        ("0.0.0.0", "special_address"),
        ("[::]", "special_address"),
        ("[::127.0.0.1]", "special_address"),
        ("169.254.169.254", "metadata_address"),
        ("[fd00:ec2::254]", "metadata_address"),
        ("198.18.1.0", "special_address"),
    ] {
        let answer = lab.connect(&format!("{host}:{port}")).await.unwrap_err();
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(rule), "{host}: {answer}");
    }
    for host in ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "user@127.0.0.1"] {
        let answer = lab.connect(&format!("{host}:{port}")).await.unwrap_err();
        assert!(answer.starts_with("HTTP/1.1 400"), "{host}: {answer}");
    }
}

#[tokio::test]
async fn nobody_reaches_the_server_though_its_host_is_allowed() {
    let lab = lab("localhost:*", settings());
    let port = serve(echo).await;
    assert!(lab.connect(&format!("localhost:{port}")).await.is_ok());
    lab.gateway.protect(format!("0.0.0.0:{port}").parse().unwrap());
    let answer = lab.connect(&format!("localhost:{port}")).await.unwrap_err();
    assert!(answer.contains("server_itself"), "{answer}");
}

#[tokio::test]
async fn a_tls_client_must_say_a_name_that_it_may_reach() {
    let lab = lab("localhost:*,*.allowed.example:*", settings());
    let port = serve(echo).await;
    for (name, passes) in
        [("localhost", true), ("x.allowed.example", true), ("other.example", false), ("allowed.example", false)]
    {
        let hello = hello(name);
        let mut stream = lab.connect(&format!("localhost:{port}")).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        let mut back = vec![0; hello.len()];
        let came = soon(stream.read_exact(&mut back)).await;
        assert_eq!(came.is_ok(), passes, "{name}");
    }
    assert_eq!(
        lab.refused(),
        [format!("other.example:{port} host_not_allowed 1"), format!("allowed.example:{port} host_not_allowed 1")]
    );
    // Nothing of a hello that was refused has reached the server.
    let sent = (hello("localhost").len() + hello("x.allowed.example").len()) as u64;
    assert_eq!(lab.door.usage().bytes_out, sent);
}

#[tokio::test]
async fn a_host_that_is_down_is_not_a_refusal() {
    let lab = lab("localhost:*,no-such-host.invalid:*", settings());
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let answer = lab.connect(&format!("localhost:{closed}")).await.unwrap_err();
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(lab.refused().is_empty());
}

#[tokio::test]
async fn the_resolver_answers_allowed_names_and_no_others() {
    let lab = lab("localhost:*", settings());
    let answer = question(&lab, "localhost").await;
    assert_eq!(code(&answer), 0);
    assert!(matches!(answer[answer.len() - 4..], [198, 18 | 19, _, _]), "{answer:?}");
    assert_eq!(answer, question(&lab, "localhost").await, "a name keeps its address");
    let answer = question(&lab, "secret-data.evil.example").await;
    assert_eq!(code(&answer), 3);
    assert_eq!(lab.refused(), ["secret-data.evil.example:- host_not_allowed 1"]);
}

#[tokio::test]
async fn a_name_that_leads_to_private_addresses_only_does_not_exist() {
    let lab = lab("internet", egress::GatewaySettings::default());
    assert_eq!(code(&question(&lab, "localhost").await), 3);
    assert_eq!(lab.refused(), ["localhost:- private_address 1"]);
}

/// Ask for the IPv4 address of a name.
async fn question(lab: &Lab, name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
    let head = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let packet: Vec<u8> = head.into_iter().chain(labels).chain([0, 0, 1, 0, 1]).collect();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&packet, lab.names).await.unwrap();
    let mut answer = vec![0; 512];
    let length = soon(socket.recv(&mut answer)).await.unwrap();
    answer.truncate(length);
    answer
}

fn code(answer: &[u8]) -> u8 {
    answer[3] & 0xf
}

/// What a TLS client says first.
fn hello(name: &str) -> Vec<u8> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
