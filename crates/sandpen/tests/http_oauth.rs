//! `sandpen serve` with OAuth: tokens of a foreign issuer, the authorization server of its own, and what strangers try with both.

#[path = "support/issuer.rs"]
mod issuer;
mod support;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use issuer::{Issuer, Key, message, now};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::server::{Answer, MCP, Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const META: &str = "io.modelcontextprotocol/protocolVersion";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const REDIRECT: &str = "http://127.0.0.1:3334/oauth/callback";
const PASSWORD: &str = "correct horse battery";

/// A call of 2026-07-28, which needs no session.
fn call_at(server: &Server, path: &str, token: &str, tool: &str, arguments: Value) -> Answer {
    let meta = json!({ META: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {} });
    let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
    let shown = format!("Bearer {token}");
    let headers = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
        ("authorization", &shown),
    ];
    server.open("POST", path, &[MCP, &headers].concat(), &body).whole()
}

fn status(server: &Server, token: &str) -> u16 {
    call_at(server, "/mcp", token, "list_sandboxes", json!({})).status
}

fn resource(server: &Server) -> String {
    format!("http://{}/mcp", server.address)
}

fn form(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

fn post(server: &Server, path: &str, pairs: &[(&str, &str)]) -> Answer {
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    server.open("POST", path, &headers, form(pairs).as_bytes()).whole()
}

fn with(mut value: Value, name: &str, other: Value) -> Value {
    match other {
        Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
        other => value[name] = other,
    }
    value
}

/// Tokens that must be refused, each for one reason (HT-03).
fn forgeries(issuer: &Issuer, key: &Key, audience: &str) -> Vec<(&'static str, String)> {
    let stranger = Key::new("stranger");
    let header = || json!({ "alg": "ES256", "typ": "at+jwt", "kid": key.id });
    let claims = || issuer.claims(audience);
    let by_secret = |secret: &[u8]| {
        let message = message(&with(header(), "alg", json!("HS256")), &claims());
        let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    };
    let impostor = Key::new(&key.id);
    vec![
        ("over", key.sign(&header(), &with(claims(), "exp", json!(now() - 120)))),
        ("without an end", key.sign(&header(), &with(claims(), "exp", Value::Null))),
        ("not yet", key.sign(&header(), &with(claims(), "nbf", json!(now() + 120)))),
        ("for another", key.sign(&header(), &with(claims(), "aud", json!("https://other.example/mcp")))),
        ("for nobody", key.sign(&header(), &with(claims(), "aud", Value::Null))),
        ("of another issuer", key.sign(&header(), &with(claims(), "iss", json!("https://other.example")))),
        ("of no issuer", key.sign(&header(), &with(claims(), "iss", Value::Null))),
        ("of nobody", key.sign(&header(), &with(claims(), "sub", Value::Null))),
        ("alg none", format!("{}.", message(&with(header(), "alg", json!("none")), &claims()))),
        ("alg none with a signature", key.sign(&with(header(), "alg", json!("none")), &claims())),
        ("a shared secret: the public key", by_secret(&key.public_bytes())),
        ("a shared secret: its JSON", by_secret(key.jwk().to_string().as_bytes())),
        ("an unknown key", stranger.sign(&with(header(), "kid", json!("stranger")), &claims())),
        ("a foreign key under a known name", impostor.sign(&header(), &claims())),
        ("its own key", impostor.sign(&with(header(), "jwk", impostor.jwk()), &claims())),
        ("an address of keys", key.sign(&with(header(), "jku", json!(format!("{}/keys", issuer.url()))), &claims())),
        ("an address of certificates", key.sign(&with(header(), "x5u", json!(issuer.url())), &claims())),
        ("another kind of token", key.sign(&with(header(), "typ", json!("logout+jwt")), &claims())),
    ]
}

/// Which of them got in.
fn let_in(forgeries: &[(&'static str, String)], status: impl Fn(&str) -> u16) -> Vec<&'static str> {
    forgeries.iter().filter(|(_, token)| status(token) != 401).map(|(why, _)| *why).collect()
}

#[test]
fn ht_03_bad_tokens_of_an_issuer_are_refused_and_good_ones_are_not() {
    needs_sandboxes!();
    let key = Key::new("one");
    let issuer = Issuer::start(&[&key]);
    let world = World::new();
    let server = Server::guarded(&world, &["--oauth-issuer", &issuer.url()]);
    let header = json!({ "alg": "ES256", "kid": "one" });
    let good = key.sign(&header, &issuer.claims(&resource(&server)));
    assert_eq!(status(&server, &good), 200, "the good one");
    let forgeries = forgeries(&issuer, &key, &resource(&server));
    assert_eq!(let_in(&forgeries, |token| status(&server, token)), Vec::<&str>::new());
    assert_eq!(status(&server, &good), 200, "still the good one");
    // The judge itself: a server that reads claims and checks nothing lets all of them in.
    let credulous = |token: &str| {
        let claims = token.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
        if claims.is_some_and(|claims| serde_json::from_slice::<Value>(&claims).is_ok()) { 200 } else { 401 }
    };
    assert_eq!(let_in(&forgeries, credulous).len(), forgeries.len(), "the judge sees what gets in");
    // For the whole server, and for one of its other endpoints.
    let origin = format!("http://{}", server.address);
    for audience in [origin.clone(), format!("{origin}/"), format!("{origin}/profiles/cloudflare/mcp")] {
        assert_eq!(status(&server, &key.sign(&header, &issuer.claims(&audience))), 200, "{audience}");
    }
}

#[test]
fn ht_03_a_key_that_its_issuer_took_back_is_good_for_nothing() {
    needs_sandboxes!();
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::start(&[&old]);
    let world = World::new();
    let server = Server::guarded(&world, &["--oauth-issuer", &issuer.url()]);
    let signed = |key: &Key| {
        let header = json!({ "alg": "ES256", "kid": key.id });
        key.sign(&header, &issuer.claims(&resource(&server)))
    };
    assert_eq!(status(&server, &signed(&old)), 200);
    assert_eq!(status(&server, &signed(&new)), 401, "it is not published yet");
    issuer.publish(&[&new]);
    wait_until("the new key is fetched", || status(&server, &signed(&new)) == 200);
    // So many wrong ones have come meanwhile that the next ones are slowed down.
    assert!([401, 429].contains(&status(&server, &signed(&old))), "a token of the old key, replayed");
    let fetched = issuer.asked().iter().filter(|asked| asked.starts_with("GET /keys")).count();
    assert!(fetched <= 4, "unknown keys made {fetched} requests");
}

#[test]
fn an_issuer_that_is_away_makes_nobody_a_liar() {
    needs_sandboxes!();
    let key = Key::new("one");
    let issuer = Issuer::start(&[&key]);
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::new();
    let server = Server::guarded(&world, &["--oauth-issuer", &format!("http://{gone}")]);
    let claims = with(issuer.claims(&resource(&server)), "iss", json!(format!("http://{gone}")));
    let answer = call_at(&server, "/mcp", &key.sign(&json!({ "alg": "ES256", "kid": "one" }), &claims), "x", json!({}));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
}

#[test]
fn ht_04_rights_are_asked_for_and_tokens_are_never_sent_on() {
    needs_sandboxes!();
    let key = Key::new("one");
    let issuer = Issuer::start(&[&key]);
    let world = World::new();
    let server = Server::guarded(&world, &["--oauth-issuer", &issuer.url()]);
    let header = json!({ "alg": "ES256", "kid": "one" });
    let token = |scope: &str| key.sign(&header, &with(issuer.claims(&resource(&server)), "scope", json!(scope)));
    let (reader, runner, nobody) = (token("sandpen:read"), token("sandpen:run"), token("email"));
    for (token, expected) in [(&reader, "sandpen:read sandpen:run"), (&nobody, "sandpen:read sandpen:run")] {
        let answer = call_at(&server, "/mcp", token, "run_command", json!({ "command": "true" }));
        let challenge = answer.header("www-authenticate").unwrap().to_owned();
        assert_eq!(answer.status, 403, "{challenge}");
        assert!(challenge.contains("error=\"insufficient_scope\""), "{challenge}");
        assert!(challenge.contains(&format!("scope=\"{expected}\"")), "{challenge}");
        assert!(challenge.contains("/.well-known/oauth-protected-resource/mcp\""), "{challenge}");
    }
    assert_eq!(status(&server, &reader), 200);
    assert_eq!(status(&server, &nobody), 403);
    let ran = call_at(&server, "/mcp", &runner, "run_command", json!({ "command": "env; cat /proc/*/cmdline" }));
    assert_eq!(ran.status, 200);
    let signature = runner.rsplit('.').next().unwrap();
    assert!(!ran.body.contains(signature), "a sandbox has seen the token");
    let asked = issuer.asked().join("\n");
    assert!(asked.contains("GET /keys"), "nothing was captured: {asked}");
    for token in [&reader, &runner, &nobody] {
        assert!(!asked.contains(token.rsplit('.').next().unwrap()), "{asked}");
    }
    // Others of the same issuer, and the person at the keyboard, are somebody else.
    let made = call_at(&server, "/mcp", &runner, "create_sandbox", json!({ "name": "mine" }));
    assert_eq!(made.status, 200);
    let bob = key.sign(&header, &with(issuer.claims(&resource(&server)), "sub", json!("bob")));
    assert!(!call_at(&server, "/mcp", &bob, "list_sandboxes", json!({})).body.contains("mine"));
    assert!(call_at(&server, "/mcp", &runner, "list_sandboxes", json!({})).body.contains("mine"));
}

#[test]
fn clients_are_told_where_to_get_a_token() {
    needs_sandboxes!();
    let issuer = Issuer::start(&[]);
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth", "--oauth-issuer", &issuer.url()]);
    let origin = format!("http://{}", server.address);
    for path in ["/mcp", "/sse", "/profiles/cloudflare/mcp", "/profiles/code-runner/sse"] {
        let answer = server.ask("GET", path, &[]);
        let challenge = answer.header("www-authenticate").unwrap().to_owned();
        let place = format!("{origin}/.well-known/oauth-protected-resource{path}");
        assert_eq!(answer.status, 401);
        assert!(challenge.contains(&format!("resource_metadata=\"{place}\"")), "{challenge}");
        assert!(challenge.contains("scope=\"sandpen:run\""), "{challenge}");
        let document = server.ask("GET", place.strip_prefix(&origin).unwrap(), &[]).json();
        assert_eq!(document["resource"], format!("{origin}{path}"));
        assert_eq!(document["authorization_servers"], json!([origin, issuer.url()]));
        assert_eq!(document["scopes_supported"], json!(["sandpen:read", "sandpen:run"]));
    }
    assert_eq!(server.ask("GET", "/.well-known/oauth-protected-resource", &[]).json()["resource"], json!(origin));
    assert_eq!(server.ask("GET", "/.well-known/oauth-protected-resource/etc/passwd", &[]).status, 404);
    let about = server.ask("GET", "/.well-known/oauth-authorization-server", &[]).json();
    assert_eq!(about["issuer"], json!(origin));
    assert_eq!(about["code_challenge_methods_supported"], json!(["S256"]));
    assert_eq!(about["authorization_response_iss_parameter_supported"], json!(true));
    // By another name of this machine, everything is under that name.
    let host = format!("localhost:{}", server.address.port());
    let document = server.ask("GET", "/.well-known/oauth-protected-resource/mcp", &[("host", &host)]).json();
    assert_eq!(document["resource"], format!("http://{host}/mcp"));
    assert_eq!(document["authorization_servers"][0], format!("http://{host}"));
}

fn account(world: &World, name: &str, flags: &[&str]) {
    let made = world.run_with_stdin(&[&["account", "create", name], flags].concat(), &format!("{PASSWORD}\n"));
    made.expect(0, &format!("{name}\n"));
}

fn challenge() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER.as_bytes()))
}

/// A client of the authorization server, as a program would be one.
struct Client<'a> {
    server: &'a Server,
    id: String,
}

impl<'a> Client<'a> {
    fn register(server: &'a Server) -> Self {
        let body =
            json!({ "client_name": "A test", "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none" });
        let headers = [("content-type", "application/json")];
        let answer = server.open("POST", "/oauth/register", &headers, body.to_string().as_bytes()).whole();
        assert_eq!(answer.status, 201, "{answer:?}");
        Self { server, id: answer.json()["client_id"].as_str().unwrap().to_owned() }
    }

    fn query(&self, changes: &[(&str, &str)]) -> String {
        let (challenge, resource) = (challenge(), resource(self.server));
        let usual = [
            ("response_type", "code"),
            ("client_id", &self.id),
            ("redirect_uri", REDIRECT),
            ("state", "the state"),
            ("scope", "sandpen:run"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &resource),
        ];
        let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
        let kept = usual.into_iter().filter(|(name, _)| !changed(name));
        // What is changed to nothing is left out.
        let pairs: Vec<_> = kept.chain(changes.iter().copied().filter(|(_, value)| !value.is_empty())).collect();
        form(&pairs)
    }

    fn begin(&self, changes: &[(&str, &str)]) -> Answer {
        self.server.ask("GET", &format!("/oauth/authorize?{}", self.query(changes)), &[])
    }

    /// The page on which to agree.
    fn signed_in(&self, changes: &[(&str, &str)]) -> Answer {
        let page = self.begin(changes);
        assert_eq!(page.status, 200, "{page:?}");
        let transaction = transaction(&page);
        let pairs = [("transaction", transaction.as_str()), ("name", "alice"), ("password", PASSWORD)];
        post(self.server, "/oauth/sign-in", &pairs)
    }

    /// A code, by a person who agrees.
    fn code(&self, changes: &[(&str, &str)]) -> String {
        let page = self.signed_in(changes);
        assert_eq!(page.status, 200, "{page:?}");
        let answer = agree(self.server, &page);
        let answered = answered(&answer);
        assert_eq!(answered("state").as_deref(), Some("the state"));
        assert_eq!(answered("iss"), Some(format!("http://{}", self.server.address)));
        answered("code").unwrap()
    }

    fn redeem(&self, code: &str, changes: &[(&str, &str)]) -> Answer {
        let usual = [
            ("grant_type", "authorization_code"),
            ("client_id", &self.id),
            ("code", code),
            ("code_verifier", VERIFIER),
            ("redirect_uri", REDIRECT),
        ];
        let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
        let kept = usual.into_iter().filter(|(name, _)| !changed(name));
        post(self.server, "/oauth/token", &kept.chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    fn tokens(&self) -> Tokens {
        Tokens::of(&self.redeem(&self.code(&[]), &[]))
    }

    fn refresh(&self, refresh: &str) -> Answer {
        let pairs = [("grant_type", "refresh_token"), ("client_id", &self.id), ("refresh_token", refresh)];
        post(self.server, "/oauth/token", &pairs)
    }
}

struct Tokens {
    access: String,
    refresh: String,
}

impl Tokens {
    #[track_caller]
    fn of(answer: &Answer) -> Self {
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{answer:?}");
        let document = answer.json();
        let word = |name: &str| document[name].as_str().unwrap().to_owned();
        Self { access: word("access_token"), refresh: word("refresh_token") }
    }
}

/// What a page carries.
#[track_caller]
fn transaction(page: &Answer) -> String {
    let rest = page.body.split("name=\"transaction\" value=\"").nth(1).expect("the page has a form");
    rest.split('"').next().unwrap().to_owned()
}

fn agree(server: &Server, page: &Answer) -> Answer {
    post(server, "/oauth/consent", &[("transaction", &transaction(page)), ("decision", "allow")])
}

/// What was said to the client at its own address.
#[track_caller]
fn answered(answer: &Answer) -> impl Fn(&str) -> Option<String> + use<> {
    assert_eq!(answer.status, 303, "{answer:?}");
    let location = answer.header("location").unwrap().to_owned();
    assert!(location.starts_with(REDIRECT), "{location}");
    move |name| {
        let url = url::Url::parse(&location).unwrap();
        url.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}

#[test]
fn a_person_signs_in_agrees_and_their_client_works_is_renewed_and_is_revoked() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &["--owner", "alice-pen"]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let page = client.begin(&[]);
    assert!(page.body.contains("<strong>A test</strong>"), "{}", page.body);
    for (header, part) in [
        ("content-security-policy", "default-src 'none'"),
        ("content-security-policy", "frame-ancestors 'none'"),
        ("x-frame-options", "DENY"),
        ("cache-control", "no-store"),
    ] {
        assert!(page.header(header).unwrap().contains(part), "{header}");
    }
    assert_eq!(page.header("set-cookie"), None);
    let consent = client.signed_in(&[]);
    for part in ["A test", "127.0.0.1", "run code", "alice"] {
        assert!(consent.body.contains(part), "{part} is not on the page: {}", consent.body);
    }
    let first = client.tokens();
    assert_eq!(status(&server, &first.access), 200);
    let made = call_at(&server, "/mcp", &first.access, "create_sandbox", json!({ "name": "mine" }));
    assert_eq!(made.status, 200, "{made:?}");
    let second = Tokens::of(&client.refresh(&first.refresh));
    assert!(call_at(&server, "/mcp", &second.access, "list_sandboxes", json!({})).body.contains("mine"));
    // The same sandboxes as by a token of the same owner.
    let token = world.run(&["token", "create", "--owner", "alice-pen"]).stdout;
    assert!(call_at(&server, "/mcp", token.trim(), "list_sandboxes", json!({})).body.contains("mine"));
    // The older server that is spoken for has the same door.
    let cloudflare =
        |token: &str| call_at(&server, "/profiles/cloudflare/mcp", token, "container_ping", json!({})).status;
    assert_eq!((cloudflare(&second.access), cloudflare("nothing")), (200, 401));
    assert_eq!(post(&server, "/oauth/revoke", &[("token", &second.refresh)]).status, 200);
    assert_eq!((status(&server, &first.access), status(&server, &second.access)), (401, 401));
    assert_eq!(client.refresh(&second.refresh).json()["error"], "invalid_grant");
    assert_eq!(post(&server, "/oauth/revoke", &[("token", "unknown")]).status, 200, "nobody learns what there is");
    // What is kept is no token.
    let kept = std::fs::read_to_string(world.state_dir().join("oauth.json")).unwrap();
    let other = client.tokens();
    let kept = kept + &std::fs::read_to_string(world.state_dir().join("oauth.json")).unwrap();
    for token in [&first.access, &first.refresh, &other.access, &other.refresh] {
        assert!(!kept.contains(&token[24..60]), "a token is in the file");
    }
}

#[test]
fn a_code_is_for_who_asked_for_it_once() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let (client, other) = (Client::register(&server), Client::register(&server));
    let (wrong_verifier, plain) = ("a".repeat(43), challenge());
    for changes in [
        &[("code_verifier", wrong_verifier.as_str())][..],
        &[("code_verifier", "")],
        &[("code_verifier", plain.as_str())],
        &[("client_id", other.id.as_str())],
        &[("redirect_uri", "http://127.0.0.1:9/oauth/callback")],
        &[("resource", "https://other.example/mcp")],
    ] {
        let answer = client.redeem(&client.code(&[]), changes);
        assert_eq!(answer.status, 400, "{changes:?}: {}", answer.body);
        assert!(!answer.body.contains("access_token"), "{changes:?}");
    }
    let code = client.code(&[]);
    let tokens = Tokens::of(&client.redeem(&code, &[]));
    assert_eq!(status(&server, &tokens.access), 200);
    assert_eq!(client.redeem(&code, &[]).json()["error"], "invalid_grant", "replayed");
    assert_eq!(status(&server, &tokens.access), 401, "what it gave the first time is taken back");
}

#[test]
fn a_refresh_token_that_comes_twice_ends_its_family() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let (first, bystander) = (client.tokens(), client.tokens());
    let second = Tokens::of(&client.refresh(&first.refresh));
    let third = Tokens::of(&client.refresh(&second.refresh));
    assert_eq!(status(&server, &third.access), 200);
    assert_eq!(client.refresh(&first.refresh).json()["error"], "invalid_grant");
    for token in [&first.access, &second.access, &third.access] {
        assert_eq!(status(&server, token), 401);
    }
    assert_eq!(client.refresh(&third.refresh).json()["error"], "invalid_grant");
    assert_eq!(status(&server, &bystander.access), 200, "another family is not concerned");
}

#[test]
fn answers_go_where_the_client_said_before_and_nowhere_else() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    for redirect in [
        "https://evil.example/",
        "http://127.0.0.1:3334/oauth/callback/../evil",
        "http://127.0.0.1:3334/oauth/callback?x=1",
        "http://127.0.0.1:3334@evil.example/oauth/callback",
        "http://127.0.0.1.evil.example:3334/oauth/callback",
        "http://localhost:3334/oauth/callback",
        "https://127.0.0.1:3334/oauth/callback",
        "javascript:alert(1)",
        "//evil.example/oauth/callback",
    ] {
        let answer = client.begin(&[("redirect_uri", redirect)]);
        assert_eq!((answer.status, answer.header("location")), (400, None), "{redirect}");
    }
    let elsewhere = client.begin(&[("redirect_uri", "http://127.0.0.1:9/oauth/callback")]);
    assert_eq!(elsewhere.status, 200, "a program takes the port that it gets");
    assert_eq!(client.begin(&[("client_id", "nobody")]).status, 400);
    let twice = format!("/oauth/authorize?{}&client_id=other", client.query(&[]));
    assert_eq!(server.ask("GET", &twice, &[]).status, 400);
    for (changes, error) in [
        (&[("code_challenge", "")][..], "invalid_request"),
        (&[("code_challenge_method", "")], "invalid_request"),
        (&[("code_challenge_method", "plain")], "invalid_request"),
        (&[("response_type", "token")], "unsupported_response_type"),
        (&[("resource", "https://other.example/mcp")], "invalid_target"),
    ] {
        let answer = client.begin(changes);
        let said = answered(&answer);
        assert_eq!((said("error").as_deref(), said("code")), (Some(error), None), "{changes:?}");
        assert_eq!(said("state").as_deref(), Some("the state"));
    }
    let page = client.signed_in(&[]);
    let denied = post(&server, "/oauth/consent", &[("transaction", &transaction(&page)), ("decision", "deny")]);
    assert_eq!(answered(&denied)("error").as_deref(), Some("access_denied"));
    for uris in [json!([]), json!(["http://evil.example/"]), json!(["javascript:alert(1)"]), json!("x"), Value::Null] {
        let body = json!({ "redirect_uris": uris }).to_string();
        let headers = [("content-type", "application/json")];
        assert_eq!(server.open("POST", "/oauth/register", &headers, body.as_bytes()).status, 400, "{uris}");
    }
}

#[test]
fn pages_are_good_once_and_for_nobody_elses_page() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let page = client.signed_in(&[]);
    let consent = transaction(&page);
    let decide = |transaction: &str, headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/x-www-form-urlencoded")], headers].concat();
        let body = form(&[("transaction", transaction), ("decision", "allow")]);
        server.open("POST", "/oauth/consent", &headers, body.as_bytes()).whole().status
    };
    assert_eq!(decide(&consent, &[("origin", "https://evil.example")]), 403);
    assert_eq!(decide(&consent, &[("origin", "null")]), 403);
    let sign_in = transaction(&client.begin(&[]));
    assert_eq!(decide(&sign_in, &[]), 400, "nobody has signed in");
    let mut changed = consent.clone().into_bytes();
    changed[10] ^= 1;
    assert_eq!(decide(&String::from_utf8(changed).unwrap(), &[]), 400);
    let own = format!("http://{}", server.address);
    assert_eq!(decide(&consent, &[("origin", &own)]), 303);
    assert_eq!(decide(&consent, &[("origin", &own)]), 400, "a second time");
    // A link on another site's page leads to the sign-in page, and nothing else does.
    let path = format!("/oauth/authorize?{}", client.query(&[]));
    let from_elsewhere = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(server.ask("GET", &path, &from_elsewhere).status, 200);
    assert_eq!(server.ask("GET", "/mcp", &from_elsewhere).status, 403);
}

#[test]
fn guessing_passwords_is_slowed_down() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    account(&world, "bob", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let sign_in = |name: &str, password: &str| {
        let transaction = transaction(&client.begin(&[]));
        let pairs = [("transaction", transaction.as_str()), ("name", name), ("password", password)];
        post(&server, "/oauth/sign-in", &pairs)
    };
    let wrong: Vec<Answer> = (0..5).map(|_| sign_in("alice", "a wrong password")).collect();
    assert!(wrong.iter().all(|answer| answer.status == 401 && answer.body.contains("role=\"alert\"")));
    let unknown = sign_in("nobody", "a wrong password");
    let without = |answer: &Answer, name: &str| {
        let transaction = transaction(answer);
        answer.body.replace(&transaction, "").replace(name, "")
    };
    assert_eq!(without(&unknown, "nobody"), without(&wrong[0], "alice"), "nobody learns which accounts there are");
    assert_eq!(sign_in("alice", PASSWORD).status, 429);
    assert_eq!(sign_in("bob", PASSWORD).status, 200, "somebody else is not kept out");
}

#[test]
fn accounts_come_and_go_while_a_server_runs() {
    needs_sandboxes!();
    let world = World::new();
    world
        .run(&["serve", "--listen", "127.0.0.1:0", "--oauth"])
        .expect(1, "")
        .says("nobody who could")
        .says("account create");
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let before = client.tokens();
    assert_eq!(status(&server, &before.access), 200);
    world.run_with_stdin(&["account", "password", "alice"], PASSWORD).expect(0, "alice\n");
    assert_eq!(status(&server, &before.access), 401, "a new password ends what was granted");
    let after = client.tokens();
    assert_eq!(status(&server, &after.access), 200);
    let listed = world.run(&["account", "ls"]).stdout;
    assert!(listed.contains("alice") && !listed.contains("argon2"), "{listed}");
    world.run(&["account", "remove", "alice"]).expect(0, "alice\n");
    assert_eq!(status(&server, &after.access), 401);
    world.run(&["account", "remove", "alice"]).expect(1, "").says("there is no account");
    world.run_with_stdin(&["account", "create", "carol"], "short\n").expect(1, "").says("a password has");
    world.run_with_stdin(&["account", "create", "Carol"], PASSWORD).expect(1, "").says("cannot be the name");
}

#[test]
fn rights_are_no_more_than_was_asked_for_and_than_the_account_has() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &["--scope", "read"]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let answer = client.redeem(&client.code(&[("scope", "sandpen:admin offline_access")]), &[]);
    assert_eq!(answer.json()["scope"], "sandpen:read");
    let tokens = Tokens::of(&answer);
    let run = call_at(&server, "/mcp", &tokens.access, "run_command", json!({ "command": "true" }));
    assert_eq!(run.status, 403);
    assert_eq!(status(&server, &tokens.access), 200);
}

#[test]
fn a_client_may_be_known_by_its_document() {
    needs_sandboxes!();
    let publisher = Issuer::start(&[]);
    let id = format!("{}/client.json", publisher.url());
    let document = json!({ "client_id": id, "client_name": "Published", "redirect_uris": [REDIRECT] });
    publisher.say("/client.json", document.clone());
    publisher.say("/other.json", document);
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client { server: &server, id: id.clone() };
    assert_eq!(client.begin(&[]).status, 400, "an address of our own network is not asked");
    assert_eq!(publisher.asked(), Vec::<String>::new());
    drop(client);
    let host = publisher.address.to_string();
    let server = Server::guarded(&world, &["--oauth", "--oauth-private-clients", &host]);
    let client = Client { server: &server, id: id.clone() };
    let page = client.signed_in(&[]);
    assert!(page.body.contains("Published") && page.body.contains("<dd>127.0.0.1</dd>"), "{}", page.body);
    let tokens = client.tokens();
    assert_eq!(status(&server, &tokens.access), 200);
    assert_eq!(publisher.asked().len(), 1, "it is believed for a while");
    let impostor = Client { server: &server, id: id.replace("client.json", "other.json") };
    assert_eq!(impostor.begin(&[]).status, 400, "a document speaks for its own address alone");
}

/// A provider where `alice` has just signed in: what comes back with her.
fn come_back(
    server: &Server,
    provider: &Issuer,
    key: &Key,
    client: &Client<'_>,
    change: impl Fn(Value) -> Value,
) -> Answer {
    let page = client.begin(&[]);
    let way = page.body.split("href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let away = server.ask("GET", &way.replace("&amp;", "&"), &[]);
    assert_eq!(away.status, 303, "{away:?}");
    let asked = url::Url::parse(away.header("location").unwrap()).unwrap();
    let said = |name: &str| asked.query_pairs().find(|(known, _)| known == name).unwrap().1.into_owned();
    assert!(asked.as_str().starts_with(&format!("{}/authorize?", provider.url())));
    assert_eq!(said("code_challenge_method"), "S256");
    let claims = with(with(provider.claims("pen"), "nonce", json!(said("nonce"))), "email", json!("alice@example.com"));
    let claims = change(with(claims, "email_verified", json!(true)));
    let id_token = key.sign(&json!({ "alg": "ES256", "kid": key.id }), &claims);
    provider.say("/token", json!({ "access_token": "theirs", "token_type": "Bearer", "id_token": id_token }));
    let back = format!("/oauth/callback?{}", form(&[("code", "theirs"), ("state", &said("state"))]));
    let answer = server.ask("GET", &back, &[("sec-fetch-site", "cross-site")]);
    let exchanged = provider.asked().into_iter().rfind(|asked| asked.starts_with("POST /token")).unwrap();
    assert!(
        exchanged.contains("Basic cGVuOnRoZSBzZWNyZXQ=") || exchanged.contains("Basic cGVuOnRoZStzZWNyZXQ="),
        "{exchanged}"
    );
    let verifier = exchanged.split("code_verifier=").nth(1).and_then(|rest| rest.split('&').next()).unwrap();
    assert_eq!(BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier)), said("code_challenge"));
    assert_eq!(server.ask("GET", &back, &[]).status, 400, "an answer is good once");
    answer
}

#[test]
fn people_sign_in_where_they_are_known() {
    needs_sandboxes!();
    let key = Key::new("one");
    let provider = Issuer::start(&[&key]);
    let world = World::new();
    world.write("secret", "the secret\n");
    let secret = world.work().join("secret");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let url = provider.url();
    let server = Server::guarded(
        &world,
        &[
            "--oauth",
            "--oidc-issuer",
            &url,
            "--oidc-client-id",
            "pen",
            "--oidc-client-secret-file",
            secret.to_str().unwrap(),
            "--oidc-allow",
            "@example.com",
        ],
    );
    let client = Client::register(&server);
    let page = come_back(&server, &provider, &key, &client, |claims| claims);
    assert!(page.status == 200 && page.body.contains("alice@example.com"), "{page:?}");
    let tokens = Tokens::of(&client.redeem(&answered(&agree(&server, &page))("code").unwrap(), &[]));
    assert_eq!(status(&server, &tokens.access), 200);
    let made = call_at(&server, "/mcp", &tokens.access, "create_sandbox", json!({ "name": "mine" }));
    assert_eq!(made.status, 200);
    for (why, status, change) in [
        ("another domain", 403, ("email", json!("alice@evil.example"))),
        ("an address that nobody has checked", 403, ("email_verified", json!(false))),
        ("no address", 403, ("email", Value::Null)),
        ("another question", 502, ("nonce", json!("other"))),
        ("no question", 502, ("nonce", Value::Null)),
        ("another client", 502, ("aud", json!("other"))),
        ("another issuer", 502, ("iss", json!("https://other.example"))),
        ("over", 502, ("exp", json!(now() - 600))),
    ] {
        let page = come_back(&server, &provider, &key, &client, |claims| with(claims, change.0, change.1.clone()));
        assert_eq!(page.status, status, "{why}: {}", page.body);
        assert!(!page.body.contains("name=\"transaction\""), "{why}");
    }
    let asked = provider.asked().join("\n");
    assert!(!asked.contains(&tokens.access[24..]), "our own token was sent on");
}
