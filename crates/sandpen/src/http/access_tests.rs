use super::*;

fn access() -> Access {
    access_by(Entrance::Open)
}

fn access_by(entrance: Entrance) -> Access {
    let hosts = ["sandpen.example.com", "other.example.com:8443"].map(|host| host.parse().unwrap());
    let origins = ["https://app.example.com", "http://tools.example.com:*"].map(|origin| origin.parse().unwrap());
    Access::new("http", "127.0.0.1:8228".parse().unwrap(), entrance, &hosts, &origins)
}

fn admit(headers: &[(&str, &str)]) -> std::result::Result<Caller, Refusal> {
    admit_by(Entrance::Open, headers)
}

fn admit_by(entrance: Entrance, headers: &[(&str, &str)]) -> std::result::Result<Caller, Refusal> {
    let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let mut map = HeaderMap::new();
    headers.for_each(|(name, value): (HeaderName, HeaderValue)| {
        map.append(name, value);
    });
    access_by(entrance).admit(&Uri::from_static("/mcp"), &map)
}

#[test]
fn a_loopback_name_is_allowed_with_any_port() {
    for host in ["localhost", "LOCALHOST:9", "127.0.0.1:8228", "127.9.9.9", "[::1]:1"] {
        assert_eq!(admit(&[("host", host)]), Ok(Caller::Program), "{host}");
    }
}

#[test]
fn a_name_that_leads_here_is_not_enough() {
    for host in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:8228", "[::2]", "0.0.0.0"]
    {
        assert_eq!(admit(&[("host", host)]), Err(Refusal::ForeignHost), "{host}");
    }
    for host in ["user@localhost", "localhost:99999", "localhost:", ""] {
        assert_eq!(admit(&[("host", host)]), Err(Refusal::UnclearHost), "{host:?}");
    }
    assert_eq!(admit(&[]), Err(Refusal::UnclearHost));
    assert_eq!(admit(&[("host", "localhost"), ("host", "localhost")]), Err(Refusal::UnclearHost));
}

#[test]
fn where_a_token_is_asked_for_any_name_will_do_but_not_any_page() {
    let by_token = |headers: &[(&str, &str)]| admit_by(Entrance::Token, headers);
    for host in ["10.0.0.1:8080", "[::2]", "sandbox.lan:8080", "evil.example"] {
        assert_eq!(by_token(&[("host", host)]), Ok(Caller::Program), "{host}");
        assert_eq!(by_token(&[("host", host), ("origin", "http://other.lan")]), Err(Refusal::ForeignOrigin), "{host}");
        assert_eq!(by_token(&[("host", host), ("sec-fetch-site", "cross-site")]), Err(Refusal::CrossSite), "{host}");
    }
    for host in ["user@localhost", ""] {
        assert_eq!(by_token(&[("host", host)]), Err(Refusal::UnclearHost), "{host:?}");
    }
    assert_eq!(by_token(&[]), Err(Refusal::UnclearHost));
}

#[test]
fn a_page_of_ours_may_ask_by_whatever_name_it_was_reached() {
    let page = |entrance, host: &str, origin: &str, site: &str| {
        admit_by(entrance, &[("host", host), ("origin", origin), ("sec-fetch-site", site)]).is_ok()
    };
    for (host, origin) in [
        ("10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("10.0.0.1:80", "http://10.0.0.1"),
        ("[::2]:8080", "http://[::2]:8080"),
    ] {
        assert!(page(Entrance::Token, host, origin, "same-origin"), "{host} {origin}");
        assert!(!page(Entrance::Token, host, origin, "same-site"), "{host} {origin}");
        assert!(!page(Entrance::Open, host, origin, "same-origin"), "the name is not allowed: {host}");
    }
    for (host, origin) in [
        ("sandbox.lan:8080", "http://sandbox.lan:8080"),
        ("evil.example", "http://evil.example"),
        ("sandbox.lan:8080", "http://sandbox.lan"),
        ("sandbox.lan:8080", "http://sandbox.lan:9090"),
        ("sandbox.lan:8080", "http://lan:8080"),
        ("sandbox.lan", "https://sandbox.lan"),
        ("sandbox.lan:8080", "https://sandbox.lan:8080"),
        ("sandbox.lan:8080", "null"),
        ("sandbox.lan:8080", "chrome-extension://sandbox.lan:8080"),
        ("localhost:8228", "http://localhost:3000"),
    ] {
        for entrance in [Entrance::Open, Entrance::Token] {
            assert!(!page(entrance, host, origin, "same-origin"), "{host} {origin}");
        }
    }
    assert!(page(Entrance::Open, "localhost:9000", "http://localhost:9000", "same-origin"), "through a tunnel");
}

#[test]
fn the_target_counts_as_much_as_the_header() {
    let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost"))]);
    let target = Uri::from_static("http://evil.example/mcp");
    assert_eq!(access().admit(&target, &headers), Err(Refusal::ForeignHost));
}

#[test]
fn a_configured_host_is_allowed_with_its_port() {
    assert!(admit(&[("host", "sandpen.example.com:1234")]).is_ok());
    assert!(admit(&[("host", "other.example.com:8443")]).is_ok());
    assert_eq!(admit(&[("host", "other.example.com:8444")]), Err(Refusal::ForeignHost));
    assert_eq!(admit(&[("host", "other.example.com")]), Err(Refusal::ForeignHost));
}

#[test]
fn pages_of_the_server_itself_and_of_the_list_are_allowed() {
    for origin in [
        "http://localhost:8228",
        "http://127.0.0.1:8228",
        "http://[::1]:8228",
        "https://app.example.com",
        "https://APP.example.com:443",
        "http://tools.example.com",
        "http://tools.example.com:5173",
    ] {
        let page = Caller::Page(origin.parse().unwrap());
        assert_eq!(admit(&[("host", "localhost:8228"), ("origin", origin)]), Ok(page), "{origin}");
    }
}

#[test]
fn every_other_page_is_refused() {
    for origin in [
        "null",
        "file://",
        "http://localhost:3000",
        "http://localhost",
        "https://localhost:8228",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://sub.app.example.com",
        "https://app.example.com.evil.example",
        "https://app.example.com@evil.example",
        "http://evil.example",
        "*",
        "",
    ] {
        let refused = admit(&[("host", "localhost:8228"), ("origin", origin)]);
        assert_eq!(refused, Err(Refusal::ForeignOrigin), "{origin:?}");
    }
    let twice = [("host", "localhost"), ("origin", "http://localhost:8228"), ("origin", "http://localhost:8228")];
    assert_eq!(admit(&twice), Err(Refusal::ForeignOrigin));
}

#[test]
fn what_a_browser_fetches_for_another_site_is_refused_without_an_origin_too() {
    for (site, allowed) in [("none", true), ("same-origin", true), ("same-site", false), ("cross-site", false)] {
        assert_eq!(admit(&[("host", "localhost"), ("sec-fetch-site", site)]).is_ok(), allowed, "{site}");
    }
}

#[test]
fn settings_that_name_nothing_are_refused() {
    for host in ["", "http://x.example", "a b", "user@x.example", "x.example:port"] {
        assert!(host.parse::<AllowedHost>().is_err(), "{host:?}");
    }
    for origin in
        ["", "*", "null", "x.example", "https://", "https://x.example/path", "https://x.example:1:*", "app://x"]
    {
        assert!(origin.parse::<AllowedOrigin>().is_err(), "{origin:?}");
    }
    assert!("app://x:*".parse::<AllowedOrigin>().is_ok());
}
