use super::*;

struct Fixture {
    base: Base,
    name: Name,
    other: Name,
}

impl Fixture {
    fn new() -> Self {
        Self { base: Base::here(4000), name: Name::random().unwrap(), other: Name::random().unwrap() }
    }

    fn place(&self) -> Place<'_> {
        Place { base: &self.base, name: &self.name, port: GuestPort::new(8000).unwrap() }
    }

    fn page(&self, headers: &HeaderMap) -> Result<Option<Page>, Foreign> {
        let port_of = |name: &Name| (*name == self.other).then(|| GuestPort::new(3000).unwrap());
        self.place().page(&Method::GET, headers, port_of)
    }

    fn request(&self, headers: &HeaderMap) -> HeaderMap {
        let page = self.page(headers).unwrap();
        self.place().request(headers, page.as_ref(), Some([127, 0, 0, 1].into()))
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, text) in pairs {
        headers.append(name.parse::<HeaderName>().unwrap(), value(text));
    }
    headers
}

#[test]
fn the_server_inside_knows_itself_by_localhost_and_never_hears_the_name() {
    let fixture = Fixture::new();
    let own = fixture.base.origin(&fixture.name);
    let host = own.strip_prefix("http://").unwrap();
    let told = fixture.request(&headers(&[
        ("host", host),
        ("origin", &own),
        ("referer", &format!("{own}/a?b=c")),
        ("x-forwarded-host", host),
        ("forwarded", &format!("for=1.2.3.4;host={}", host.to_uppercase())),
        ("x-original-url", &format!("{own}/")),
        ("cookie", "session=1"),
        ("authorization", "Bearer of-the-app"),
        ("x-forwarded-for", "192.0.2.7"),
    ]));
    assert_eq!(told["host"], "localhost:8000");
    assert_eq!(told["origin"], "http://localhost:8000");
    assert_eq!(told["referer"], "http://localhost:8000/a?b=c");
    assert_eq!(told["x-forwarded-for"], "192.0.2.7, 127.0.0.1");
    assert_eq!(told["x-forwarded-proto"], "http");
    assert_eq!(
        (told["cookie"].clone(), told["authorization"].clone()),
        (value("session=1"), value("Bearer of-the-app"))
    );
    let text = format!("{told:?}").to_lowercase();
    assert!(!text.contains(fixture.name.as_str()), "{text}");
}

#[test]
fn what_is_ours_or_of_the_connection_stays_behind() {
    let fixture = Fixture::new();
    let told = fixture.request(&headers(&[
        ("authorization", "Bearer sandpen_0123456789ab_secret"),
        ("proxy-authorization", "Basic eA=="),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("transfer-encoding", "chunked"),
        ("expect", "100-continue"),
        ("upgrade", "websocket"),
        ("referer", "https://chat.example/private"),
        ("accept", "*/*"),
    ]));
    let mut names: Vec<&str> = told.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "host", "x-forwarded-for", "x-forwarded-proto"]);
    let access = fixture.request(&headers(&[("authorization", "Bearer sandpen_at_0123456789ab_x")]));
    assert!(!access.contains_key("authorization"));
}

#[test]
fn another_protocol_is_asked_for_unless_it_is_http_again() {
    let fixture = Fixture::new();
    let told = fixture.request(&headers(&[
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "x"),
        ("http2-settings", "x"),
    ]));
    assert_eq!(
        (&told["connection"], &told["upgrade"], &told["sec-websocket-key"]),
        (&value("upgrade"), &value("websocket"), &value("x"))
    );
    assert!(!told.contains_key("http2-settings"));
    for protocol in ["h2c", "H2", "websocket, h2c"] {
        let told = fixture.request(&headers(&[("connection", "upgrade"), ("upgrade", protocol)]));
        assert!(!told.contains_key("upgrade") && !told.contains_key("connection"), "{protocol}");
    }
}

#[test]
fn pages_of_other_sites_are_foreign() {
    let fixture = Fixture::new();
    let own = fixture.base.origin(&fixture.name);
    let other = fixture.base.origin(&fixture.other);
    let unknown = fixture.base.origin(&Name::random().unwrap());
    let inside = |page: Option<Page>| page.map(|page| page.inside);
    assert_eq!(fixture.page(&headers(&[])).map(inside), Ok(None));
    assert_eq!(fixture.page(&headers(&[("origin", &own)])).map(inside), Ok(Some(value("http://localhost:8000"))));
    assert_eq!(fixture.page(&headers(&[("origin", &other)])).map(inside), Ok(Some(value("http://localhost:3000"))));
    for origin in ["https://evil.example", "null", "", "http://localhost:8228", &unknown, &own.replace("http", "https")]
    {
        assert_eq!(fixture.page(&headers(&[("origin", origin)])), Err(Foreign), "{origin}");
    }
    assert_eq!(fixture.page(&headers(&[("origin", &own), ("origin", &own)])), Err(Foreign));
    for (site, mode, expected) in [
        ("same-origin", "no-cors", Ok(None)),
        ("none", "navigate", Ok(None)),
        ("cross-site", "navigate", Ok(None)),
        ("cross-site", "no-cors", Err(Foreign)),
        ("same-site", "no-cors", Err(Foreign)),
    ] {
        let asked = headers(&[("sec-fetch-site", site), ("sec-fetch-mode", mode)]);
        assert_eq!(fixture.page(&asked), expected, "{site} {mode}");
    }
    let form = headers(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]);
    assert_eq!(fixture.place().page(&Method::POST, &form, |_| None), Err(Foreign));
}

#[test]
fn an_answer_leads_where_the_browser_is_and_says_nothing_of_the_whole_host() {
    let fixture = Fixture::new();
    let page = fixture.page(&headers(&[("origin", &fixture.base.origin(&fixture.other))])).unwrap();
    let told = fixture.place().response(
        &headers(&[
            ("location", "http://127.0.0.1:8000/next?x=1"),
            ("access-control-allow-origin", "http://localhost:3000"),
            ("set-cookie", "a=1; Domain=localhost; Path=/; HttpOnly"),
            ("set-cookie", "b=2;domain = .example.com"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h2=\":1\""),
            ("clear-site-data", "\"cookies\""),
            ("connection", "close"),
            ("content-length", "1"),
            ("transfer-encoding", "chunked"),
        ]),
        page.as_ref(),
    );
    assert_eq!(told["location"], "/next?x=1");
    assert_eq!(told["access-control-allow-origin"], fixture.base.origin(&fixture.other).as_str());
    let cookies: Vec<_> = told.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1; Path=/; HttpOnly", "b=2"]);
    assert_eq!(told["referrer-policy"], "same-origin");
    for absent in
        ["strict-transport-security", "alt-svc", "clear-site-data", "connection", "content-length", "transfer-encoding"]
    {
        assert!(!told.contains_key(absent), "{absent}");
    }
    let whole = fixture.place().response(&headers(&[("content-length", "1")]), None);
    assert_eq!(whole["content-length"], "1");
    for elsewhere in ["https://example.com/", "http://localhost:9/", "/here", "http://localhost:8000.evil.example/"] {
        let told = fixture.place().response(&headers(&[("location", elsewhere)]), None);
        assert_eq!(told["location"], elsewhere);
    }
    let told = fixture.place().response(&headers(&[("location", "http://localhost:8000//evil.example/")]), None);
    assert_eq!(told["location"], "/evil.example/");
}
