//! `sandpen serve` with OAuth and somebody else: tokens of a foreign issuer, clients that are documents, people who are known elsewhere.

#[path = "support/issuer.rs"]
mod issuer;
#[path = "support/oauth.rs"]
mod oauth;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use issuer::{Issuer, Key, message, now};
use oauth::{Client, REDIRECT, Tokens, account, agree, answered, call_at, form, resource, status, with};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::plain::{expect, judge, plain};
use support::server::{Answer, Server};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
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

/// A server without these walls: it believes what a token says of itself, lets everybody do everything, and shows the token to its
/// issuer.
fn credulous(issuer: &Issuer) -> Server {
    let address = issuer.address;
    plain(Router::new().fallback(move |headers: HeaderMap| async move {
        let shown = headers.get("authorization").and_then(|shown| shown.to_str().ok()).unwrap_or_default();
        let mut stream = TcpStream::connect(address).unwrap();
        let asked = format!("GET /keys HTTP/1.1\r\nhost: {address}\r\nauthorization: {shown}\r\n");
        stream.write_all(format!("{asked}connection: close\r\n\r\n").as_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        let claims = shown.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
        let is_token = claims.is_some_and(|claims| serde_json::from_slice::<Value>(&claims).is_ok());
        if is_token { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    }))
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
    let careless = credulous(&issuer);
    let in_there = let_in(&forgeries, |token| status(&careless, token));
    assert_eq!(in_there.len(), forgeries.len(), "the probe sees what gets in: {in_there:?}");
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
fn an_issuer_is_believed_by_its_certificate() {
    needs_sandboxes!();
    let key = Key::new("one");
    let (issuer, certificate) = Issuer::start_encrypted(&[&key]);
    let world = World::new();
    world.write("roots.pem", &certificate);
    let roots = world.work().join("roots.pem");
    let url = issuer.url();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--oauth-issuer", &url];
    let answered = |variables: &[(&str, &str)]| {
        let server = Server::by(&world, &arguments, variables);
        let claims = issuer.claims(&resource(&server));
        status(&server, &key.sign(&json!({ "alg": "ES256", "kid": "one" }), &claims))
    };
    assert_eq!(answered(&[]), 503, "nobody here trusts that certificate");
    assert_eq!(issuer.asked(), Vec::<String>::new());
    assert_eq!(answered(&[("SSL_CERT_FILE", roots.to_str().unwrap())]), 200);
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
    let rights = |server: &Server| {
        for token in [&reader, &nobody] {
            let answer = call_at(server, "/mcp", token, "run_command", json!({ "command": "true" }));
            let challenge = answer.header("www-authenticate").unwrap_or_default().to_owned();
            expect(answer.status == 403, || format!("{}: {challenge}", answer.status))?;
            for part in [
                "error=\"insufficient_scope\"",
                "scope=\"sandpen:read sandpen:run\"",
                "/.well-known/oauth-protected-resource/mcp\"",
            ] {
                expect(challenge.contains(part), || format!("no {part} in {challenge}"))?;
            }
        }
        Ok(())
    };
    let careless = credulous(&issuer);
    let stays_here = |server: &Server| {
        status(server, &runner);
        let asked = issuer.asked().join("\n");
        expect(asked.contains("GET /keys"), || format!("nothing was captured: {asked}"))?;
        let is_told = [&reader, &runner, &nobody].iter().any(|token| asked.contains(token.rsplit('.').next().unwrap()));
        expect(!is_told, || "the issuer was shown a token".to_owned())
    };
    let of_server = rights(&server);
    assert_eq!(status(&server, &reader), 200);
    assert_eq!(status(&server, &nobody), 403);
    let ran = call_at(&server, "/mcp", &runner, "run_command", json!({ "command": "env; cat /proc/*/cmdline" }));
    assert_eq!(ran.status, 200);
    let signature = runner.rsplit('.').next().unwrap();
    assert!(!ran.body.contains(signature), "a sandbox has seen the token");
    let of_issuer = stays_here(&server);
    judge("HT-04, rights", of_server, rights(&careless));
    judge("HT-04, passing on", of_issuer, stays_here(&careless));
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
    world.write("sandpen.toml", "oidc_allow = ['@example.com']\n");
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
            "--config",
            "sandpen.toml",
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

    // Who is not let in any more is out, as soon as the server has heard of it.
    let allow = |whom: &str, expected: u16| {
        world.write("sandpen.toml", &format!("oidc_allow = ['{whom}']\n"));
        server.signal(Signal::HUP);
        wait_until(whom, || status(&server, &tokens.access) == expected);
    };
    allow("bob@example.com", 401);
    assert_eq!(come_back(&server, &provider, &key, &client, |claims| claims).status, 403);
    allow("alice@example.com", 200);
    allow("@elsewhere.example", 401);
    assert_eq!(client.refresh(&tokens.refresh).status, 400, "nor is what was granted renewed");
}
