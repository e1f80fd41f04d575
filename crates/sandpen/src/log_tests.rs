use std::ffi::OsStr;
use std::time::SystemTime;

use egress::SecretValue;
use sandbox::{Environment, ExecRequest, Owner, SandboxSpec};

use crate::auth::scope::Scope;
use crate::auth::token::{NewToken, Shown, TokenFile};
use crate::config::code_runner::FileSecret;
use crate::http::bearer::ApiToken;
use crate::trace::settings::Settings;

const CANARY: &str = "canary-5d41402abc4b2a76";

/// A log writes what is printed of a value. Of whatever holds a secret, that is not the secret.
#[test]
fn no_secret_can_be_written_to_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let new = NewToken { name: None, owner: Owner::local(), scope: Scope::Run, lives: None };
    let (token, id, known) = TokenFile::of_state_directory(directory.path()).create(new, SystemTime::now()).unwrap();
    let secret = token.reveal().rsplit('_').next().unwrap().to_owned();
    let mut environment = Environment::default();
    environment.insert("API_KEY", CANARY).unwrap();
    let mut spec = SandboxSpec::new(Owner::local());
    spec.environment = environment.clone();
    let mut request = ExecRequest::new(["true"], std::time::Duration::from_secs(1)).unwrap();
    request.environment = environment.clone();
    let traces = Settings::read(|name| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://127.0.0.1:4318".to_owned()),
        "OTEL_EXPORTER_OTLP_HEADERS" => Some(format!("authorization={CANARY}")),
        _ => None,
    });
    let login = || images::Login::Password { user: "user".to_owned(), secret: CANARY.to_owned() };
    let of_daemon = engine_docker::Login::Password { user: "user".to_owned(), secret: CANARY.to_owned() };
    for printed in [
        format!("{token:?} {id:?} {known:?} {:?}", Shown::new(token.reveal())),
        format!("{:?}", ApiToken::new(OsStr::new(CANARY))),
        format!("{:?}", FileSecret::new(CANARY)),
        format!("{:?}", SecretValue::new(CANARY).unwrap()),
        format!("{environment:?} {spec:?} {request:?}"),
        format!("{traces:?}"),
        format!("{:?} {:?} {of_daemon:?}", login(), images::Login::Identity(CANARY.to_owned())),
    ] {
        assert!(!printed.contains(CANARY) && !printed.contains(&secret), "{printed}");
    }
    assert!(format!("{environment:?}").contains("API_KEY"), "names are no secrets");
}
