//! Credentials: given to whom they belong, and to nobody else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use images::registry::{self, Credentials, Mirror, Settings};
use images::{Error, Named, Result, Work};
use serde_json::json;

use crate::archive::{Archive, Layout};
use crate::fake::{Answer, Asked, Fake, Shelf};
use crate::place::{Place, reference};
use crate::registries::settings;
use crate::server::{PASSWORD, Registry, USER};

fn basic() -> String {
    format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")))
}

/// What `docker login` leaves for these hosts.
fn docker_config(place: &Place, hosts: &[&str]) -> Credentials {
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let auths: serde_json::Map<_, _> = hosts.iter().map(|host| ((*host).to_owned(), json!({"auth": auth}))).collect();
    let file = place.top.path().join("store/config.json");
    fs::write(&file, json!({"auths": auths}).to_string()).unwrap();
    Credentials::in_file(file)
}

fn pull(place: &Place, host: &str, settings: &Settings) -> Result<Named> {
    registry::pull(&place.store, &reference(&format!("{host}/tool:1")), settings, &Work::default())
}

fn shelf() -> Shelf {
    Shelf::new("tool", "1", Layout::new(&[Archive::new().file("file", "contents").bytes()]))
}

#[test]
fn a_closed_registry_opens_to_those_who_have_logged_in() {
    let Some(registry) = Registry::start_closed() else { return };
    let host = registry.host();
    let place = Place::new();
    place.import(&Archive::new().file("file", "contents").bytes()).unwrap();
    let target = reference(&format!("{host}/tool:1"));
    let credentials = docker_config(&place, &[&host]);
    let with_login = Settings { credentials, ..settings(&[&host]) };
    let refused = registry::push(&place.store, &place.image(), &target, &settings(&[&host]), &Work::default());
    assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    registry::push(&place.store, &place.image(), &target, &with_login, &Work::default()).unwrap();

    let other = Place::new();
    let refused = pull(&other, &host, &settings(&[&host]));
    assert!(matches!(&refused, Err(Error::Denied(why)) if why.contains("no login")), "{refused:?}");
    other.assert_nothing_came();
    pull(&other, &host, &with_login).unwrap();

    let wrong = place.top.path().join("store/wrong.json");
    let auth = STANDARD.encode(format!("{USER}:wrong"));
    fs::write(&wrong, json!({"auths": {&host: {"auth": auth}}}).to_string()).unwrap();
    let with_wrong = Settings { credentials: Credentials::in_file(wrong), ..settings(&[&host]) };
    let refused = pull(&Place::new(), &host, &with_wrong);
    assert!(matches!(&refused, Err(Error::Denied(why)) if why.contains("not taken")), "{refused:?}");
}

/// A registry that gives tokens, as most do.
fn with_tokens(place: &Place, login: bool) -> (Fake, Settings) {
    let shelf = shelf();
    let fake = Fake::start(move |asked| {
        let host = &asked.headers["host"];
        if asked.path.starts_with("/token") {
            return match asked.authorization() {
                Some(authorization) if authorization == basic() => Answer::new(200, r#"{"token":"for-ada"}"#),
                Some(_) => Answer::new(401, ""),
                None => Answer::new(200, r#"{"access_token":"for-anybody"}"#),
            };
        }
        match asked.authorization() {
            Some("Bearer for-ada" | "Bearer for-anybody") => shelf.answer(asked),
            _ => Answer::new(401, "")
                .with("WWW-Authenticate", format!("Bearer realm=\"http://{host}/token\",service=\"the registry\"")),
        }
    });
    let credentials = if login { docker_config(place, &[&fake.host()]) } else { Credentials::none() };
    let settings = Settings { credentials, ..settings(&[&fake.host()]) };
    (fake, settings)
}

#[test]
fn tokens_are_fetched_for_what_is_wanted() {
    for login in [false, true] {
        let place = Place::new();
        let (fake, settings) = with_tokens(&place, login);
        pull(&place, &fake.host(), &settings).unwrap();
        let asked = fake.asked();
        let tokens: Vec<&Asked> = asked.iter().filter(|asked| asked.path.starts_with("/token")).collect();
        assert_eq!(tokens.len(), 1, "one token is enough");
        assert!(tokens[0].path.contains("scope=repository%3Atool%3Apull"), "{}", tokens[0].path);
        assert!(tokens[0].path.contains("service=the%20registry"), "{}", tokens[0].path);
        assert_eq!(tokens[0].authorization(), login.then(basic).as_deref());
        let with_password = asked.iter().filter(|asked| asked.authorization() == Some(&basic())).count();
        assert_eq!(with_password, usize::from(login), "the password is for the token alone");
    }
}

#[test]
fn an_identity_is_exchanged_for_a_token() {
    let place = Place::new();
    let (fake, _) = with_tokens(&place, false);
    let shelf = shelf();
    let host = fake.host();
    let fake = Fake::start(move |asked| match (asked.path.as_str(), asked.authorization()) {
        ("/token", None) if asked.body.contains("refresh_token=the%2Didentity") => {
            assert!(asked.body.contains("grant_type=refresh%5Ftoken"), "{}", asked.body);
            Answer::new(200, r#"{"access_token":"fresh"}"#)
        }
        (_, Some("Bearer fresh")) => shelf.answer(asked),
        _ => Answer::new(401, "")
            .with("WWW-Authenticate", format!("Bearer realm=\"http://{}/token\"", asked.headers["host"])),
    });
    drop(host);
    let file = place.top.path().join("store/config.json");
    fs::write(&file, json!({"auths": {fake.host(): {"identitytoken": "the-identity"}}}).to_string()).unwrap();
    let settings = Settings { credentials: Credentials::in_file(file), ..settings(&[&fake.host()]) };
    pull(&place, &fake.host(), &settings).unwrap();
}

/// Layers often lie elsewhere. Whoever keeps them learns neither password nor token.
#[test]
fn whoever_a_request_is_sent_on_to_gets_no_credentials() {
    let place = Place::new();
    let blobs = shelf();
    let elsewhere = Fake::start(move |asked| blobs.answer(asked));
    let (shelf, target) = (shelf(), elsewhere.host());
    let registry = Fake::start(move |asked| match asked.authorization() {
        Some(authorization) if authorization == basic() && asked.path.contains("/blobs/") => {
            Answer::new(307, "").with("Location", format!("http://{target}{}", asked.path))
        }
        Some(authorization) if authorization == basic() => shelf.answer(asked),
        _ => Answer::new(401, "").with("WWW-Authenticate", "Basic realm=\"x\""),
    });
    // Both hosts have a login, so only the rule keeps it back.
    let credentials = docker_config(&place, &[&registry.host(), &elsewhere.host()]);
    let both = Settings { credentials, ..settings(&[&registry.host(), &elsewhere.host()]) };
    pull(&place, &registry.host(), &both).unwrap();
    assert!(registry.asked().iter().any(|asked| asked.authorization().is_some()), "the control");
    assert!(!elsewhere.asked().is_empty());
    for asked in elsewhere.asked() {
        assert_eq!(asked.authorization(), None, "{}", asked.path);
    }
}

#[test]
fn whoever_a_request_is_sent_on_to_cannot_ask_for_credentials() {
    let place = Place::new();
    let elsewhere = Fake::start(|_| Answer::new(401, "").with("WWW-Authenticate", "Basic realm=\"give\""));
    let (shelf, target) = (shelf(), elsewhere.host());
    let registry = Fake::start(move |asked| {
        if asked.path.contains("/blobs/") {
            return Answer::new(302, "").with("Location", format!("http://{target}/x"));
        }
        shelf.answer(asked)
    });
    let credentials = docker_config(&place, &[&registry.host(), &elsewhere.host()]);
    let both = Settings { credentials, ..settings(&[&registry.host(), &elsewhere.host()]) };
    let pulled = pull(&place, &registry.host(), &both);
    assert!(matches!(pulled, Err(Error::Denied(_))), "{pulled:?}");
    assert!(elsewhere.asked().iter().all(|asked| asked.authorization().is_none()));
}

#[test]
fn a_redirect_to_a_host_that_is_not_named_is_not_followed_in_the_clear() {
    let elsewhere = Fake::start(|_| Answer::new(200, ""));
    let target = elsewhere.host();
    let registry = Fake::start(move |_| Answer::new(307, "").with("Location", format!("http://{target}/x")));
    let pulled = pull(&Place::new(), &registry.host(), &settings(&[&registry.host()]));
    assert!(matches!(pulled, Err(Error::Refused(_))), "{pulled:?}");
    assert!(elsewhere.asked().is_empty());
}

#[test]
fn a_realm_that_is_not_named_gets_no_password_in_the_clear() {
    let place = Place::new();
    let thief = Fake::start(|_| Answer::new(200, r#"{"token":"x"}"#));
    let target = thief.host();
    let registry = Fake::start(move |_| {
        Answer::new(401, "").with("WWW-Authenticate", format!("Bearer realm=\"http://{target}/token\""))
    });
    let credentials = docker_config(&place, &[&registry.host()]);
    let pulled = pull(&place, &registry.host(), &Settings { credentials, ..settings(&[&registry.host()]) });
    assert!(matches!(pulled, Err(Error::Refused(_))), "{pulled:?}");
    assert!(thief.asked().is_empty());
}

#[test]
fn a_mirror_does_not_get_the_login_of_whom_it_mirrors() {
    let place = Place::new();
    let mirror = Fake::start(|_| Answer::new(401, "").with("WWW-Authenticate", "Basic realm=\"give\""));
    let shelf = shelf();
    let registry = Fake::start(move |asked| match asked.authorization() {
        Some(authorization) if authorization == basic() => shelf.answer(asked),
        _ => Answer::new(401, "").with("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let settings = Settings {
        credentials: docker_config(&place, &[&registry.host()]),
        mirrors: vec![Mirror { of: registry.host(), host: mirror.host() }],
        ..settings(&[&registry.host(), &mirror.host()])
    };
    pull(&place, &registry.host(), &settings).unwrap();
    assert!(!mirror.asked().is_empty());
    assert!(mirror.asked().iter().all(|asked| asked.authorization().is_none()));
}

/// Helpers are found in PATH, which belongs to the whole process; so the test runs itself with another one.
#[test]
fn helpers_are_asked_for_one_host() {
    let place = Place::new();
    let shelf = Arc::new(shelf());
    let answer = move |asked: &Asked| match asked.authorization() {
        Some(authorization) if authorization == basic() => shelf.answer(asked),
        _ => Answer::new(401, "").with("WWW-Authenticate", "Basic realm=\"x\""),
    };
    let registry = Fake::start(answer);
    let host = registry.host();
    let helper = place.top.path().join("store/docker-credential-sandpen-test");
    let log = place.top.path().join("store/log");
    let script = format!(
        "#!/bin/sh\nread host\necho \"$1 $host\" >> {}\n[ \"$host\" = {host} ] || {{ echo credentials not found in native keychain; exit 1; }}\n\
         echo '{{\"ServerURL\":\"x\",\"Username\":\"{USER}\",\"Secret\":\"{PASSWORD}\"}}'\n",
        log.display()
    );
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let config = place.top.path().join("store/config.json");
    fs::write(&config, json!({"credHelpers": {&host: "sandpen-test"}, "credsStore": "sandpen-test"}).to_string())
        .unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "logins::pull_in_a_child", "--nocapture"])
        .env("PATH", format!("{}:{path}", helper.parent().unwrap().display()))
        .env("SANDPEN_TEST_HOST", &host)
        .env("SANDPEN_TEST_CONFIG", &config)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    assert_eq!(fs::read_to_string(log).unwrap(), format!("get {host}\n"));
}

#[test]
fn pull_in_a_child() {
    let (Ok(host), Ok(config)) = (std::env::var("SANDPEN_TEST_HOST"), std::env::var("SANDPEN_TEST_CONFIG")) else {
        return;
    };
    let credentials = Credentials::in_file(Path::new(&config).to_owned());
    pull(&Place::new(), &host, &Settings { credentials, ..settings(&[&host]) }).unwrap();
}
