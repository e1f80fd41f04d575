//! What the command line answers before any sandbox is made.

mod support;

use support::World;

#[test]
fn help_shows_examples_and_ends_well() {
    let world = World::new();
    for arguments in [&["--help"][..], &["run", "--help"], &["exec", "-h"], &["create", "--help"], &["cp", "-h"]] {
        let help = world.run(arguments);
        assert_eq!(help.code, Some(0), "{arguments:?}");
        assert!(help.stdout.contains("Examples:\n  "), "{arguments:?}: {}", help.stdout);
        assert!(!help.stdout.contains('\u{1b}'), "colour without a terminal");
    }
    world.run(&["--version"]).expect(0, concat!("sandpen ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn colour_follows_the_flag_and_the_usual_variables() {
    let world = World::new();
    let colourful = |done: support::Done| done.stderr.contains("\u{1b}[");
    let wrong = ["--engine", "docker", "ps"];
    assert!(!colourful(world.run(&wrong)));
    assert!(colourful(world.run(&["--color", "always", "--engine", "docker", "ps"])));
    let forced = world.command(&wrong).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(colourful(forced.into()));
    let refused =
        world.command(&["--color=never", "--engine", "docker", "ps"]).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(!colourful(refused.into()));
}

#[test]
fn an_unknown_flag_is_125_for_run_and_2_elsewhere() {
    let world = World::new();
    world.run(&["run", "python", "1", "--memry", "1G"]).expect(125, "").says("--memory");
    world.run(&["ps", "--memry"]).expect(2, "").says("--memry");
    world.run(&["frobnicate"]).expect(2, "").says("frobnicate");
}

#[test]
fn errors_are_objects_for_programs() {
    let world = World::new();
    let error = world.run(&["--json", "--engine", "kubernetes", "ps"]);
    assert_eq!(error.code, Some(1));
    assert_eq!(error.stderr, "");
    let object = error.json();
    assert_eq!(object["error"]["kind"], "unsupported");
    assert_eq!(object["error"]["message"], "the kubernetes engine is not in this version");
    assert!(object["error"]["hint"].is_string());

    let usage = world.run(&["run", "--json", "python", "1", "--memry", "1G"]);
    assert_eq!(usage.code, Some(125));
    assert_eq!(usage.json()["error"]["kind"], "invalid_input");
}

#[test]
fn settings_come_from_the_file_the_variables_and_the_flags() {
    let world = World::new();
    world.write("sandpen.toml", "engine = 'docker'\n");
    let engine = |arguments: &[&str], variable: Option<&str>| {
        let mut command = world.command(arguments);
        // Those of the engine that the run of these tests is about would win.
        command.env_remove("SANDPEN_ENGINE").env_remove("SANDPEN_DAEMON_HOST");
        command.env("SANDPEN_CONFIG", world.work().join("sandpen.toml"));
        // No daemon of this machine is to answer.
        let nowhere = format!("unix://{}", world.work().join("socket").display());
        command.env("DOCKER_HOST", &nowhere).env("CONTAINER_HOST", &nowhere);
        if let Some(value) = variable {
            command.env("SANDPEN_ENGINE", value);
        }
        support::Done::from(command.output().unwrap()).stderr
    };
    assert!(engine(&["ps"], None).contains("no Docker daemon answers"));
    assert!(engine(&["ps"], Some("podman")).contains("no Podman daemon answers"));
    assert!(engine(&["ps", "--engine", "kubernetes"], Some("podman")).contains("the kubernetes engine"));
}

#[test]
fn a_wrong_setting_is_reported_with_its_place() {
    let world = World::new();
    world.write("sandpen.toml", "memmory = '1G'\n");
    world
        .run(&["--config", "sandpen.toml", "ps"])
        .expect(1, "")
        .says("error: sandpen.toml has the unknown key \"memmory\"\nhint: did you mean memory?\n");
    world.run(&["--config", "absent.toml", "ps"]).expect(1, "").says("absent.toml cannot be read: no such file");
    world.run(&["run", "python", "1", "--memory", "lots"]).expect(125, "").says("--memory: \"lots\" is not a size");
}

#[test]
fn a_setting_that_the_engine_cannot_follow_is_refused() {
    let world = World::new();
    let mirror = ["image", "pull", "tool:1", "--registry-mirror", "mirror.example"];
    let refused = |engine: &str, arguments: &[&str]| world.run(&[&["--engine", engine][..], arguments].concat());
    refused("docker", &mirror).expect(1, "").says(
        "error: --registry-mirror: the Docker daemon fetches images, and asks mirrors by its own settings\n\
         hint: leave it out, and set \"registry-mirrors\" in the daemon's daemon.json (/etc/docker/daemon.json)\n",
    );
    let run = ["run", "python", "1", "--insecure-registry", "localhost:5000"];
    refused("docker", &run).expect(125, "").says("\"insecure-registries\"");
    refused("podman", &run).expect(125, "").says("registries.conf");
    let mut command = world.command(&["--engine", "podman", "ps"]);
    let done = support::Done::from(command.env("SANDPEN_INSECURE_REGISTRY", "localhost:5000").output().unwrap());
    done.expect(1, "").says("error: SANDPEN_INSECURE_REGISTRY: Podman fetches images");
    // Whoever asks for another kernel must not get this one.
    refused("native", &["run", "bash", "echo x", "--runtime", "runsc"]).expect(125, "").says("--runtime: runtimes are");
}

#[test]
fn a_file_in_the_current_directory_is_not_read_by_itself() {
    let world = World::new();
    world.write("sandpen.toml", "memmory = '1G'\n");
    assert!(!world.run(&["ps"]).stderr.contains("memmory"));
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world.run(&["completions", shell]);
        assert_eq!(script.code, Some(0));
        assert!(script.stdout.contains("doctor"), "{shell}");
    }
    assert!(world.run(&["man"]).stdout.contains(".TH sandpen 1"));
    world.run(&["man", "--directory", "."]).expect(0, "");
    let pages = support::names(&world.work());
    assert!(pages.contains(&"sandpen.1".to_owned()) && pages.contains(&"sandpen-run.1".to_owned()), "{pages:?}");
}

#[test]
fn flags_of_an_older_server_go_with_its_profile_alone() {
    let world = World::new();
    for arguments in [&["--install"][..], &["--no-update"], &["--transport", "stdio"], &["--port", "9520"]] {
        for profile in [&[][..], &["--profile", "cloudflare"]] {
            let refused = world.run(&[&["mcp"], profile, arguments].concat());
            refused.expect(1, "").says(arguments[0]).says("--profile automata");
        }
    }
    world.run(&["mcp", "--profile", "automata", "--transport", "tcp"]).expect(2, "").says("stdio, sse");
}
