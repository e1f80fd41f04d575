use std::collections::HashMap;

use sandbox::ErrorKind;

use super::*;

fn key(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Default)]
struct World {
    variables: HashMap<&'static str, String>,
    files: HashMap<PathBuf, String>,
    runtime: Option<PathBuf>,
}

impl World {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.insert(name, value.to_owned());
        self
    }

    fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(PathBuf::from(path), text.to_owned());
        self
    }

    fn context(self, name: &str, endpoint: &str) -> Self {
        let path = format!("/home/user/.docker/contexts/meta/{}/meta.json", key(name));
        self.file(&path, &format!(r#"{{"Name":"{name}","Metadata":{{}},"Endpoints":{{"docker":{endpoint}}}}}"#))
    }

    fn look(&self, flavour: Flavour, wish: &Wish) -> Result<Vec<Candidate>> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let read = |path: &Path| self.files.get(path).map(|text| text.clone().into_bytes());
        candidates(flavour, wish, &Surroundings { variable: &variable, read: &read, runtime: self.runtime.as_deref() })
    }

    fn places(&self, flavour: Flavour) -> Vec<String> {
        self.look(flavour, &Wish::default()).unwrap().iter().map(|found| found.endpoint.to_string()).collect()
    }

    fn refusal(&self, flavour: Flavour) -> Error {
        self.look(flavour, &Wish::default()).unwrap_err()
    }
}

fn at_home() -> World {
    World::default().with("HOME", "/home/user").with("XDG_RUNTIME_DIR", "/run/user/1000")
}

#[test]
#[cfg(unix)]
fn without_a_word_the_usual_sockets_are_tried() {
    assert_eq!(
        at_home().places(Flavour::Docker),
        ["/var/run/docker.sock", "/run/user/1000/docker.sock", "/home/user/.docker/run/docker.sock"]
    );
    assert_eq!(
        at_home().places(Flavour::Podman),
        [
            "/run/user/1000/podman/podman.sock",
            "/run/podman/podman.sock",
            "/home/user/.local/share/containers/podman/machine/podman.sock"
        ]
    );
    assert_eq!(World::default().places(Flavour::Docker), ["/var/run/docker.sock"]);
}

#[test]
#[cfg(unix)]
fn the_users_own_sockets_are_found_without_a_variable() {
    let made = |variables: World| World { runtime: Some("/run/user/7".into()), ..variables };
    assert_eq!(made(World::default()).places(Flavour::Docker), ["/var/run/docker.sock", "/run/user/7/docker.sock"]);
    let podmans = made(World::default()).places(Flavour::Podman);
    assert_eq!(podmans, ["/run/user/7/podman/podman.sock", "/run/podman/podman.sock"]);
    assert_eq!(made(at_home()).places(Flavour::Docker)[1], "/run/user/1000/docker.sock", "the variable goes first");
}

#[test]
fn what_is_named_is_the_only_place() {
    let world = at_home().with("DOCKER_HOST", "unix:///srv/d.sock").with("CONTAINER_HOST", "unix:///srv/p.sock");
    assert_eq!(world.places(Flavour::Docker), ["/srv/d.sock"]);
    assert_eq!(world.places(Flavour::Podman), ["/srv/p.sock"]);
    let wish = Wish { host: Some("tcp://10.0.0.1:2375".to_owned()), context: None };
    let found = world.look(Flavour::Docker, &wish).unwrap();
    assert_eq!(found[0].endpoint, Endpoint::Plain { address: "10.0.0.1:2375".to_owned() });
}

#[test]
fn addresses_read_as_docker_reads_them() {
    for (host, place) in [
        ("tcp://h:1", "tcp://h:1"),
        ("tcp://h:1/", "tcp://h:1"),
        ("h:1", "tcp://h:1"),
        ("/a.sock", "/a.sock"),
        ("npipe:////./pipe/x", r"\\.\pipe\x"),
    ] {
        assert_eq!(at_home().with("DOCKER_HOST", host).places(Flavour::Docker), [place]);
    }
    for host in ["unix://", "unix://relative", "ftp://h", "https://h:2376", "ssh://user@h"] {
        let error = at_home().with("DOCKER_HOST", host).refusal(Flavour::Docker);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{host}");
        assert!(error.message().contains("DOCKER_HOST"), "{error}");
    }
}

#[test]
fn ssh_is_refused_with_a_way_around() {
    for (flavour, name) in [(Flavour::Docker, "DOCKER_HOST"), (Flavour::Podman, "CONTAINER_HOST")] {
        let error = at_home().with(name, "ssh://core@10.0.0.1/run/podman/podman.sock").refusal(flavour);
        assert!(error.hint().unwrap().contains("ssh -N -L"), "{error:?}");
    }
}

#[test]
fn tls_is_verified_or_refused() {
    let verified = at_home().with("DOCKER_HOST", "tcp://h:2376").with("DOCKER_TLS_VERIFY", "1");
    let found = verified.look(Flavour::Docker, &Wish::default()).unwrap();
    let files = TlsFiles::in_directory(Path::new("/home/user/.docker"));
    assert_eq!(found[0].endpoint, Endpoint::Tls { address: "h:2376".to_owned(), files });
    let elsewhere = verified.with("DOCKER_CERT_PATH", "/etc/certs");
    let found = elsewhere.look(Flavour::Docker, &Wish::default()).unwrap();
    let Endpoint::Tls { files, .. } = &found[0].endpoint else { panic!("{found:?}") };
    assert_eq!(files.key, Path::new("/etc/certs/key.pem"));
    let blind = at_home().with("DOCKER_HOST", "tcp://h:2376").with("DOCKER_TLS", "1");
    assert_eq!(blind.refusal(Flavour::Docker).kind(), ErrorKind::Denied);
}

#[test]
fn what_docker_says_of_tls_is_for_dockers_addresses_alone() {
    for (name, value) in [("DOCKER_TLS", "1"), ("DOCKER_TLS_VERIFY", "1")] {
        let socket = World::default().with("DOCKER_HOST", "unix:///srv/d.sock").with(name, value);
        assert_eq!(socket.places(Flavour::Docker), ["/srv/d.sock"], "{name}");
        let other = World::default().with("CONTAINER_HOST", "tcp://h:8080").with(name, value);
        assert_eq!(other.places(Flavour::Podman), ["tcp://h:8080"], "{name}");
    }
    let encrypted = at_home().with("CONTAINER_HOST", "https://h:8080").refusal(Flavour::Podman);
    assert!(!encrypted.hint().unwrap().contains("DOCKER"), "{encrypted:?}");
}

#[test]
fn contexts_are_dockers_own() {
    let world = at_home().context("work", r#"{"Host":"unix:///srv/w.sock","SkipTLSVerify":false}"#);
    assert_eq!(world.with("DOCKER_CONTEXT", "work").places(Flavour::Docker), ["/srv/w.sock"], "by the variable");
    let current = at_home()
        .context("work", r#"{"Host":"tcp://h:2376"}"#)
        .file("/home/user/.docker/config.json", r#"{"auths":{},"currentContext":"work"}"#)
        .file(&format!("/home/user/.docker/contexts/tls/{}/docker/ca.pem", key("work")), "…");
    assert_eq!(current.places(Flavour::Docker), ["tcp://h:2376 with TLS"], "by the configuration");
    let first = current.with("DOCKER_HOST", "unix:///srv/d.sock");
    assert_eq!(first.places(Flavour::Docker), ["/srv/d.sock"], "DOCKER_HOST goes before contexts");
    let wish = Wish { host: None, context: Some("work".to_owned()) };
    let found = first.look(Flavour::Docker, &wish).unwrap();
    assert_eq!(found[0].endpoint.to_string(), "tcp://h:2376 with TLS", "a setting goes before DOCKER_HOST");
    assert_eq!(first.look(Flavour::Podman, &wish).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
#[cfg(unix)]
fn the_default_context_is_the_usual_place() {
    let world = at_home().file("/home/user/.docker/config.json", r#"{"currentContext":"work"}"#);
    assert_eq!(world.with("DOCKER_CONTEXT", "default").places(Flavour::Docker)[0], "/var/run/docker.sock");
}

#[test]
fn contexts_that_are_not_there_or_broken_are_said() {
    let error = at_home().with("DOCKER_CONTEXT", "work").refusal(Flavour::Docker);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for endpoint in ["{}", "null", "[]", r#"{"Host":7}"#] {
        let world = at_home().context("work", endpoint).with("DOCKER_CONTEXT", "work");
        assert_eq!(world.refusal(Flavour::Docker).kind(), ErrorKind::InvalidInput, "{endpoint}");
    }
    let blind = at_home().context("work", r#"{"Host":"tcp://h:2376","SkipTLSVerify":true}"#);
    assert_eq!(blind.with("DOCKER_CONTEXT", "work").refusal(Flavour::Docker).kind(), ErrorKind::Denied);
    let world = at_home().file("/home/user/.docker/config.json", "{");
    assert_eq!(world.refusal(Flavour::Docker).kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_context_with_certificates_and_no_authority_is_not_plain() {
    for file in ["cert.pem", "key.pem"] {
        let world = at_home()
            .context("work", r#"{"Host":"tcp://h:2376"}"#)
            .file(&format!("/home/user/.docker/contexts/tls/{}/docker/{file}", key("work")), "…")
            .with("DOCKER_CONTEXT", "work");
        assert_eq!(world.refusal(Flavour::Docker).kind(), ErrorKind::Denied, "{file}");
    }
}

/// Of each place, in their order.
fn clients(world: &World, flavour: Flavour, wish: &Wish) -> Vec<String> {
    world.look(flavour, wish).unwrap().iter().map(|found| found.client.join(" ")).collect()
}

#[test]
#[cfg(unix)]
fn clients_are_told_of_the_place_unless_they_look_there_by_themselves() {
    let nothing = Wish::default();
    assert_eq!(
        clients(&at_home(), Flavour::Docker, &nothing),
        ["", "--host unix:///run/user/1000/docker.sock", "--host unix:///home/user/.docker/run/docker.sock"]
    );
    assert_eq!(
        clients(&at_home(), Flavour::Podman, &nothing),
        [
            "--remote --url unix:///run/user/1000/podman/podman.sock",
            "--remote --url unix:///run/podman/podman.sock",
            "--remote --url unix:///home/user/.local/share/containers/podman/machine/podman.sock"
        ]
    );
    let encrypted = at_home()
        .with("DOCKER_HOST", "https://h:2376")
        .with("DOCKER_TLS_VERIFY", "1")
        .with("DOCKER_CERT_PATH", "/certs");
    assert_eq!(
        clients(&encrypted, Flavour::Docker, &nothing),
        ["--host tcp://h:2376 --tlsverify --tlscacert /certs/ca.pem --tlscert /certs/cert.pem --tlskey /certs/key.pem"]
    );
}

#[test]
fn clients_are_told_of_what_was_named_in_words_that_they_know() {
    for (flavour, host, told) in [
        (Flavour::Docker, "/srv/d.sock", "--host unix:///srv/d.sock"),
        (Flavour::Docker, "http://h:2375/", "--host tcp://h:2375"),
        (Flavour::Docker, "h:2375", "--host tcp://h:2375"),
        (Flavour::Docker, "npipe:////./pipe/x", "--host npipe:////./pipe/x"),
        (Flavour::Podman, "unix:///srv/p.sock", "--remote --url unix:///srv/p.sock"),
    ] {
        let wish = Wish { host: Some(host.to_owned()), context: None };
        assert_eq!(clients(&at_home(), flavour, &wish), [told], "by the setting");
        let variable = if flavour == Flavour::Docker { "DOCKER_HOST" } else { "CONTAINER_HOST" };
        assert_eq!(clients(&at_home().with(variable, host), flavour, &Wish::default()), [told], "by {variable}");
    }
}

#[test]
fn clients_are_told_of_the_context() {
    let world = || at_home().context("work", r#"{"Host":"unix:///srv/w.sock"}"#);
    let by = |name: &str| Wish { host: None, context: Some(name.to_owned()) };
    let nothing = Wish::default();
    assert_eq!(clients(&world(), Flavour::Docker, &by("work")), ["--context work"]);
    assert_eq!(clients(&world().with("DOCKER_CONTEXT", "work"), Flavour::Docker, &nothing), ["--context work"]);
    let current = || world().file("/home/user/.docker/config.json", r#"{"currentContext":"work"}"#);
    assert_eq!(clients(&current(), Flavour::Docker, &nothing), ["--context work"], "it may be another one tomorrow");
    assert_eq!(clients(&current(), Flavour::Docker, &by("default"))[0], "--context default");
    let elsewhere = current().with("HOME", "/root").with("DOCKER_CONFIG", "/home/user/.docker");
    let told = "--config /home/user/.docker --context work";
    assert_eq!(clients(&elsewhere, Flavour::Docker, &nothing), [told], "whoever reads it has none of our variables");
}
