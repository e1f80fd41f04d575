use http::Request;

use super::super::value::SecretValue;
use super::*;

const VALUE: &str = "sk \"1\\/é&=+";

fn target(host: &str, port: u16, channel: Channel) -> Target {
    Target { host: host.parse().unwrap(), port, channel }
}

fn here() -> Target {
    target("api.example.com", 443, Channel::Encrypted)
}

fn secret(name: &str, value: &str, header: Option<&str>) -> (Secret, Placeholder) {
    let name: SecretName = name.parse().unwrap();
    let placeholder = Placeholder::random(&name).unwrap();
    let hosts = vec!["api.example.com".parse().unwrap()];
    let header = header.map(|header| header.parse().unwrap());
    (Secret::new(name, SecretValue::new(value).unwrap(), hosts, header).unwrap(), placeholder)
}

fn filling(secrets: &[(Secret, Placeholder)]) -> Filling {
    Filling::new(secrets.iter().map(|(secret, placeholder)| (secret, placeholder)))
}

fn head(builder: http::request::Builder) -> Parts {
    builder.body(()).unwrap().into_parts().0
}

#[test]
fn a_placeholder_becomes_the_value_wherever_it_stands_in_a_head() {
    let secrets = [secret("KEY", VALUE, None), secret("OTHER", "12345678", None)];
    let (mark, other) = (secrets[0].1.as_str(), secrets[1].1.as_str());
    let basic = STANDARD.encode(format!("user:{mark}"));
    let mut head = head(
        Request::get(format!("/v1/{mark}/x?key={mark}&other={other}"))
            .header("authorization", format!("basic {basic}"))
            .header("x-both", format!("{mark},{other};"))
            .header("x-none", "sandpen-secret-key-"),
    );
    let used = filling(&secrets).fill(&mut head).unwrap();
    assert_eq!(used, [0, 1].into());
    let encoded = "sk%20%221%5C%2F%C3%A9%26%3D%2B";
    assert_eq!(head.uri.to_string(), format!("/v1/{encoded}/x?key={encoded}&other=12345678"));
    assert_eq!(head.headers["x-both"].as_bytes(), format!("{VALUE},12345678;").as_bytes());
    assert_eq!(head.headers["authorization"], format!("Basic {}", STANDARD.encode(format!("user:{VALUE}"))));
    assert_eq!(head.headers["x-none"], "sandpen-secret-key-");
    assert!(!format!("{:?}", head.headers).contains("12345678"), "a header that holds a value can be printed");
}

#[test]
fn a_header_of_a_secret_is_set_on_each_request() {
    let secrets = [secret("KEY", "12345678", Some("Authorization: Bearer {}"))];
    let mut head = head(Request::get("/").header("authorization", "Basic mine").header("authorization", "x"));
    assert_eq!(filling(&secrets).fill(&mut head).unwrap(), [0].into());
    let all: Vec<_> = head.headers.get_all("authorization").iter().collect();
    assert_eq!(all, ["Bearer 12345678"]);
}

#[test]
fn nothing_is_used_where_nothing_is_asked_for() {
    let mut head = head(Request::get("/a?b").header("x", "y"));
    assert!(filling(&[secret("KEY", VALUE, None)]).fill(&mut head).unwrap().is_empty());
    assert_eq!(head.uri, "/a?b");
}

#[test]
fn a_body_is_filled_in_its_own_spelling() {
    let secrets = [secret("KEY", VALUE, None)];
    let filling = filling(&secrets);
    let body = format!("<{}>", secrets[0].1.as_str());
    for (kind, expected) in [
        ("application/json; charset=utf-8", r#"<sk \"1\\/é&=+>"#),
        ("application/vnd.api+json", r#"<sk \"1\\/é&=+>"#),
        ("application/x-ndjson", r#"<sk \"1\\/é&=+>"#),
        ("application/X-WWW-Form-Urlencoded", "<sk%20%221%5C%2F%C3%A9%26%3D%2B>"),
        ("text/plain", "<sk \"1\\/é&=+>"),
        ("", "<sk \"1\\/é&=+>"),
    ] {
        let headers = head(Request::post("/").header("content-type", kind)).headers;
        let (filled, _) = Replacer::whole(&filling.for_body(&headers).unwrap(), body.as_bytes());
        assert_eq!(String::from_utf8(filled).unwrap(), expected, "{kind}");
    }
    let compressed = head(Request::post("/").header("content-encoding", "gzip")).headers;
    assert!(filling.for_body(&compressed).is_none());
}

#[test]
fn a_request_cannot_lead_elsewhere() {
    for (uri, hosts, expected) in [
        ("/", &["api.example.com"][..], None),
        ("/", &["API.Example.com.:443"], None),
        ("https://api.example.com/a", &["api.example.com"], None),
        ("/", &["api.example.com:8443"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["api.example.com:"], None),
        ("/", &["api.example.com:99999"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["evil.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["api.example.com@evil.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["evil@api.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["api.example.com, evil.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["api.example.com/evil"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &["127.0.0.1"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &[""], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("/", &[], Some(StatusCode::BAD_REQUEST)),
        ("/", &["api.example.com", "evil.example.com"], Some(StatusCode::BAD_REQUEST)),
        ("/", &["api.example.com", "api.example.com"], Some(StatusCode::BAD_REQUEST)),
        ("https://evil.example.com/", &["api.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
        ("http://api.example.com/", &["api.example.com"], Some(StatusCode::MISDIRECTED_REQUEST)),
    ] {
        let mut builder = Request::get(uri);
        for host in hosts {
            builder = builder.header("host", *host);
        }
        let mut head = head(builder);
        let refused = check(&mut head, &here()).err().map(|refusal| refusal.status);
        assert_eq!(refused, expected, "{uri} {hosts:?}");
        if refused.is_none() {
            assert_eq!(head.headers["host"], "api.example.com");
            assert!(head.uri.authority().is_none());
        }
    }
    let odd = target("2001:db8::7", 8443, Channel::Encrypted);
    let mut head = head(Request::get("/").header("host", "[2001:DB8::7]:8443"));
    check(&mut head, &odd).unwrap();
    assert_eq!(head.headers["host"], "[2001:db8::7]:8443");
}

#[test]
fn what_would_make_an_answer_unreadable_is_taken_out() {
    let mut sent = head(
        Request::get("/")
            .header("host", "api.example.com")
            .header("accept-encoding", "br, gzip")
            .header("range", "bytes=1-2")
            .header("if-range", "x")
            .header("expect", "100-continue")
            .header("connection", "keep-alive, X-Hop, Content-Length, host")
            .header("x-hop", "1")
            .header("content-length", "7")
            .header("te", "gzip, trailers")
            .header("proxy-authorization", "x")
            .header("upgrade", "h2c")
            .header("x-kept", "1"),
    );
    check(&mut sent, &here()).unwrap();
    let mut left: Vec<_> = sent.headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["accept-encoding", "content-length", "host", "x-kept"]);
    assert_eq!(sent.headers["accept-encoding"], "identity");
    for (method, name, value, status) in [
        ("GET", "upgrade", "websocket", StatusCode::NOT_IMPLEMENTED),
        ("CONNECT", "x", "y", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let builder = Request::builder().method(method).uri("api.example.com:443");
        let mut head = head(builder.header("host", "api.example.com").header(name, value));
        assert_eq!(check(&mut head, &here()).unwrap_err().status, status);
    }
}
