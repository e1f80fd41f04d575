//! `sandpen serve --oauth`: people who sign in on its pages, their clients, and what strangers try with both.

#[path = "support/oauth.rs"]
mod oauth;
mod support;

use oauth::{Client, PASSWORD, Tokens, account, answered, call_at, challenge, form, post, status, transaction};
use serde_json::{Value, json};
use support::server::{Answer, MCP, Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
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
fn guesses_that_come_at_the_same_time_are_counted_before_they_are_looked_at() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    account(&world, "bob", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let page = transaction(&client.begin(&[]));
    let guess = |number: usize| {
        let password = format!("a wrong password {number}");
        let pairs = [("transaction", page.as_str()), ("name", "alice"), ("password", password.as_str())];
        post(&server, "/oauth/sign-in", &pairs).status
    };
    let answered: Vec<u16> = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..60)
            .map(|number| {
                scope.spawn({
                    let guess = &guess;
                    move || guess(number)
                })
            })
            .collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let count = |status: u16| answered.iter().filter(|answered| **answered == status).count();
    assert_eq!((count(401), count(429)), (5, 55), "{answered:?}");
    // Right ones are not counted, however many.
    for _ in 0..8 {
        let page = transaction(&client.begin(&[]));
        let pairs = [("transaction", page.as_str()), ("name", "bob"), ("password", PASSWORD)];
        assert_eq!(post(&server, "/oauth/sign-in", &pairs).status, 200);
    }
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
fn one_grant_is_ended_and_the_others_go_on() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    world.run(&["account", "grants"]).expect(0, "").says("nobody has let a client in");
    let client = Client::register(&server);
    let (first, second) = (client.tokens(), client.tokens());
    let listed = world.run(&["--json", "account", "grants"]).json();
    let grants = listed["grants"].as_array().unwrap();
    assert_eq!(grants.len(), 2);
    for grant in grants {
        assert_eq!(
            (&grant["who"], &grant["client_name"], &grant["scope"]),
            (&json!("alice"), &json!("A test"), &json!("run"))
        );
        assert!(!listed.to_string().contains(&first.access[24..]), "the token itself is shown");
    }
    let shown = world.run(&["account", "grants"]).succeeds();
    let of_first =
        grants.iter().map(|grant| grant["id"].as_str().unwrap()).find(|id| first.access.contains(id)).unwrap();
    assert!(shown.contains(of_first) && shown.contains("A test"), "{shown}");
    assert_eq!((status(&server, &first.access), status(&server, &second.access)), (200, 200));
    assert_eq!(world.run(&["account", "revoke", of_first, "0123456789ab"]).code, Some(1), "one of them is none");
    assert_eq!(status(&server, &first.access), 200, "so nothing was done");
    world.run(&["account", "revoke", of_first]).expect(0, &format!("{of_first}\n"));
    wait_until("it is ended", || status(&server, &first.access) == 401);
    assert_eq!(client.refresh(&first.refresh).status, 400);
    assert_eq!(status(&server, &second.access), 200);
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

/// A client begins with little, and asks its user for more when it needs it.
#[test]
fn a_client_asks_for_more_with_what_it_was_told() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let server = Server::guarded(&world, &["--oauth"]);
    let client = Client::register(&server);
    let run = |token: &str| call_at(&server, "/mcp", token, "run_command", json!({ "command": "true" }));
    let little = Tokens::of(&client.redeem(&client.code(&[("scope", "sandpen:read")]), &[]));
    let refused = run(&little.access);
    assert_eq!(refused.status, 403);
    let challenge = refused.header("www-authenticate").unwrap();
    let scope = challenge.split("scope=\"").last().and_then(|rest| rest.split('"').next()).unwrap();
    let more = Tokens::of(&client.redeem(&client.code(&[("scope", scope)]), &[]));
    assert_eq!(run(&more.access).status, 200);
    assert_eq!(run(&little.access).status, 403, "what was granted before is what it was");
}

/// What has begun by a grant ends with it; what goes on by another does not.
#[test]
fn streams_end_when_what_was_granted_is_taken_back() {
    needs_sandboxes!();
    let world = World::new();
    account(&world, "alice", &[]);
    let log = world.work().join("audit.jsonl");
    let server = Server::guarded(&world, &["--oauth", "--audit-log", log.to_str().unwrap()]);
    let client = Client::register(&server);
    let (gone, stays) = (client.tokens(), client.tokens());
    let listen = |tokens: &Tokens| {
        let shown = format!("Bearer {}", tokens.access);
        let headers = [("accept", "text/event-stream"), ("authorization", shown.as_str())];
        let mut stream = server.open("GET", "/sse", &headers, b"");
        stream.until("\n\n");
        stream
    };
    let (ending, mut lasting) = (listen(&gone), listen(&stays));
    assert_eq!(post(&server, "/oauth/revoke", &[("token", &gone.refresh)]).status, 200);
    // It would wait for ever, and fail by the patience of the connection.
    ending.whole();
    let inbox = lasting.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    let shown = format!("Bearer {}", stays.access);
    let headers = [MCP, &[("authorization", shown.as_str())]].concat();
    assert_eq!(server.open("POST", &inbox, &headers, &request(5, "ping", json!({}))).status, 202);
    lasting.until("\"id\":5");
    wait_until("it is written down", || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.contains("\"granted\"") && lines.contains("\"who\":\"alice\"") && lines.contains("A test")
    });
}
