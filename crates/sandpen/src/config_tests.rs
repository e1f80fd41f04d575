use std::ffi::OsString;

use egress::Allowance;
use sandbox::Role;

use super::*;

fn written(origin: Origin, values: &[(Key, &str)]) -> Written {
    let mut written = Written::new(origin);
    values.iter().for_each(|(key, value)| written.push(*key, *value));
    written
}

fn file(values: &[(Key, &str)]) -> Written {
    written(Origin::File("sandpen.toml".into()), values)
}

fn variables(values: &[(&str, &str)]) -> Written {
    let values: Vec<(String, OsString)> = values.iter().map(|(name, value)| ((*name).into(), value.into())).collect();
    env::read(|name| values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())).unwrap()
}

fn flags(values: &[(Key, &str)]) -> Written {
    written(Origin::Flags, values)
}

#[test]
fn a_flag_beats_a_variable_and_a_variable_beats_the_file() {
    let file = || file(&[(Key::Memory, "1G"), (Key::Disk, "1M"), (Key::Processes, "10")]);
    let variables = || variables(&[("SANDPEN_MEMORY", "2G"), ("SANDPEN_DISK", "2M")]);
    let limits = Config::resolve([file(), variables(), flags(&[(Key::Memory, "3G")])]).unwrap().sandbox.limits;
    assert_eq!(limits.memory.bytes(), 3 << 30);
    assert_eq!(limits.disk.bytes(), 2 << 20);
    assert_eq!(limits.processes, 10);
    assert_eq!(limits.cpu_millis, 1000);
}

#[test]
fn a_list_is_replaced_and_a_map_is_merged() {
    let config = Config::resolve([
        file(&[(Key::AllowMissing, "landlock"), (Key::AllowMissing, "seccomp"), (Key::Env, "A=1"), (Key::Env, "B=1")]),
        variables(&[("SANDPEN_ALLOW_MISSING", "cpu-limit,memory-limit"), ("SANDPEN_ENV", "B=2")]),
        flags(&[(Key::Env, "C=x=y,z")]),
    ])
    .unwrap();
    assert_eq!(config.allow_missing, BTreeSet::from([Layer::CpuLimit, Layer::MemoryLimit]));
    let environment = config.sandbox.environment().unwrap();
    let environment: Vec<_> = environment.iter().collect();
    assert_eq!(environment, [("A", "1"), ("B", "2"), ("C", "x=y,z")]);
}

#[test]
fn a_wrong_value_is_reported_with_its_place() {
    let message = |written| Config::resolve([written]).unwrap_err().message().to_owned();
    assert_eq!(message(file(&[(Key::Memory, "lots")])), "memory in sandpen.toml: \"lots\" is not a size");
    assert_eq!(message(variables(&[("SANDPEN_TIMEOUT", "x")])), "SANDPEN_TIMEOUT: \"x\" is not a span of time");
    assert_eq!(message(flags(&[(Key::AllowMissing, "x")])), "--allow-missing: \"x\" is not an isolation layer");
}

#[test]
fn an_empty_variable_is_not_set() {
    assert_eq!(variables(&[("SANDPEN_MEMORY", "")]).values, []);
}

#[test]
fn values_that_cannot_work_are_refused() {
    for (key, value) in [
        (Key::Cpus, "0"),
        (Key::Cpus, "many"),
        (Key::Cpus, "inf"),
        (Key::Timeout, "0"),
        (Key::Processes, "-1"),
        (Key::Processes, "1"),
        (Key::Memory, "1k"),
        (Key::Env, "NAME"),
        (Key::Env, "1A=x"),
        (Key::Json, "maybe"),
        (Key::Color, "blue"),
        (Key::Engine, "dokcer"),
        (Key::Image, "a b"),
        (Key::DaemonHost, "unix:///a b"),
        (Key::ContainerImage, "dir:/srv"),
        (Key::RunnerImage, "a*b"),
        (Key::ContainerUser, "root"),
        (Key::Runtime, ""),
        (Key::Pull, "always"),
        (Key::AllowImage, "dir:/srv"),
        (Key::AllowImage, "a*b"),
        (Key::Network, ""),
        (Key::Network, "none,a.example"),
        (Key::Network, "https://a.example"),
        (Key::MaxNetwork, "*"),
        (Key::Secret, "not-a-name"),
        (Key::AllowPrivateHost, "db.internal:0"),
        (Key::NetworkConnections, "0"),
        (Key::NetworkConnections, "-1"),
        (Key::NetworkBytes, "0"),
        (Key::OwnerNetworkRate, "fast"),
        (Key::PassThroughEnv, "A=B"),
    ] {
        assert!(Config::resolve([flags(&[(key, value)])]).is_err(), "{key:?} took {value:?}");
    }
}

#[test]
fn an_image_may_be_named_from_the_current_directory() {
    let config = Config::resolve([flags(&[(Key::Image, "dir:root")])]).unwrap();
    assert_eq!(config.sandbox.image, Image::Directory(std::path::absolute("root").unwrap()));
}

#[test]
fn an_image_that_is_named_is_pulled_unless_that_is_forbidden() {
    let config = Config::resolve([file(&[(Key::Image, "debian:12")])]).unwrap();
    assert_eq!((config.sandbox.image.to_string().as_str(), config.registries.pull), ("debian:12", Pull::Missing));
    let config = Config::resolve([file(&[(Key::Pull, "missing")]), variables(&[("SANDPEN_PULL", "never")])]).unwrap();
    assert_eq!(config.registries.pull, Pull::Never);
}

#[test]
fn images_for_clients_are_those_of_the_last_place() {
    let places = [file(&[(Key::AllowImage, "debian:12")]), variables(&[("SANDPEN_ALLOW_IMAGE", "python:*,tool:1")])];
    let policy = crate::wiring::policy(&Config::resolve(places).unwrap()).unwrap();
    assert_eq!(policy.images.iter().map(ToString::to_string).collect::<Vec<_>>(), ["python:*", "tool:1"]);
    assert_eq!(Config::default().server.images, []);
}

#[test]
fn the_network_is_written_alike_everywhere() {
    let config = Config::resolve([
        file(&[(Key::AllowPrivateHost, "old.internal"), (Key::Secret, "OLD"), (Key::MaxNetwork, "internet")]),
        variables(&[
            ("SANDPEN_NETWORK", "b.example,a.example:22"),
            ("SANDPEN_ALLOW_PRIVATE_HOST", "db.internal:5432,*.lab.internal"),
            ("SANDPEN_SECRET", "API_KEY,OTHER"),
        ]),
        flags(&[
            (Key::NetworkConnections, "10"),
            (Key::NetworkBytes, "1G"),
            (Key::NetworkRate, "1M"),
            (Key::OwnerNetworkBytes, "2G"),
        ]),
    ])
    .unwrap();
    assert_eq!(config.sandbox.network.to_string(), "a.example:22,b.example");
    assert_eq!(config.server.ceiling.network.to_string(), "internet");
    let hosts: Vec<_> = config.gateway.private_hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["db.internal:5432", "*.lab.internal"]);
    assert_eq!(config.sandbox.secrets.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["API_KEY", "OTHER"]);
    let Allowance { connections, bytes, rate } = config.gateway.of_sandbox;
    assert_eq!((connections, bytes, rate), (10, Some(1 << 30), Some(1 << 20)));
    let owner = config.gateway.of_owner;
    assert_eq!((owner.connections, owner.bytes, owner.rate), (4096, Some(2 << 30), None));
}

#[test]
fn a_server_may_give_what_it_gives_unasked() {
    let policy = |values: &[(Key, &str)]| crate::wiring::policy(&Config::resolve([flags(values)]).unwrap()).unwrap();
    let ceiling = |values: &[(Key, &str)]| policy(values).ceiling.network.to_string();
    assert_eq!(ceiling(&[]), "none");
    assert_eq!(ceiling(&[(Key::Network, "a.example")]), "a.example");
    assert_eq!(ceiling(&[(Key::Network, "a.example"), (Key::MaxNetwork, "b.example")]), "a.example,b.example");
    assert_eq!(ceiling(&[(Key::Network, "internet"), (Key::MaxNetwork, "b.example")]), "internet");
    assert_eq!(policy(&[(Key::MaxNetwork, "internet")]).network.to_string(), "none");
}

#[test]
fn an_owner_has_as_much_as_the_operator_says() {
    let config = Config::resolve([flags(&[])]).unwrap();
    assert_eq!((config.quota.disk, config.quota), (None, sandbox::Quota::default()));
    let config = Config::resolve([flags(&[(Key::OwnerDisk, "20G"), (Key::OwnerSavedImages, "7")])]).unwrap();
    assert_eq!((config.quota.disk.map(|disk| disk.bytes()), config.quota.saved_images), (Some(20 << 30), 7));
    for (key, value) in [(Key::OwnerDisk, "much"), (Key::OwnerSavedImages, "-1")] {
        assert!(Config::resolve([flags(&[(key, value)])]).is_err(), "{value}");
    }
}

#[test]
fn a_command_may_take_as_long_as_the_operator_says() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let config = |values: &[(Key, &str)]| Config::resolve([flags(values)]).unwrap();
    let allowed = |values: &[(Key, &str)]| config(values).quota.exec_timeout;
    assert_eq!((allowed(&[]), allowed(&[(Key::Timeout, "5s")])), (minutes(30), minutes(30)));
    let long = [(Key::Timeout, "2h"), (Key::OwnerLimit, "alice:sandboxes=5")];
    assert_eq!(allowed(&long), minutes(120));
    let owners = config(&long).limits_of_owners();
    assert_eq!(owners[&"alice".parse().unwrap()].quota.exec_timeout, minutes(120));
    // Older servers that waited for ever ask for more than anybody has beside others, and for a day alone.
    for profile in [ProfileName::SandboxServer, ProfileName::Automata] {
        let beside = |values: &[(Key, &str)]| config(values).as_profile(profile).unwrap();
        for (values, given) in [(&[][..], minutes(30)), (&[(Key::Timeout, "5m")], minutes(5)), (&long, minutes(120))] {
            assert_eq!(beside(values).sandbox.timeout(Screen::Streams), given, "{profile} {values:?}");
            assert_eq!(beside(values).quota.exec_timeout, allowed(values), "{profile} {values:?}");
        }
        let alone = config(&[(Key::Profile, profile.as_str())]).serving_with(|_| None).unwrap();
        assert_eq!(alone.sandbox.timeout(Screen::Streams), minutes(24 * 60), "{profile}");
        assert_eq!(alone.quota.exec_timeout, minutes(24 * 60), "{profile}");
    }
}

#[test]
fn a_sandbox_may_be_unused_for_as_long_as_the_operator_says() {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    let config = |values: &[(Key, &str)]| Config::resolve([flags(values)]).unwrap();
    let allowed = |config: &Config| (config.quota.idle_lifetime, config.quota.persistent_idle_lifetime);
    assert_eq!(allowed(&config(&[])), (days(1), days(30)));
    assert_eq!(allowed(&config(&[(Key::Idle, "2d")])), (days(2), days(30)));
    let long = [(Key::Idle, "400d")];
    assert_eq!(allowed(&config(&long)), (days(400), days(400)));
    for profile in [ProfileName::SandboxServer, ProfileName::Automata] {
        let unused = |values: &[(Key, &str)]| {
            let config = config(values).as_profile(profile).unwrap();
            let policy = crate::wiring::policy(&config).unwrap();
            assert_eq!(policy.longest_unused, config.quota.idle_lifetime);
            (policy.longest_unused, policy.lifetime.idle)
        };
        assert_eq!(unused(&[]), (days(1), days(30)), "{profile}: what it wishes for is for those that are kept");
        assert_eq!(unused(&long), (days(400), days(400)), "{profile}");
    }
}

#[test]
fn what_is_written_for_us_counts_more_than_the_variables_of_an_older_server() {
    let serving = |written: &[(Key, &str)], variables: &[(&str, &str)]| {
        let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Config::resolve([file(written)]).unwrap().serving_with(lookup).unwrap()
    };
    let (profile, listen) = ((Key::Profile, "code-runner"), (Key::Listen, "127.0.0.1:9"));
    let (token, chosen) = (("MCP_API_TOKEN", "x"), ("MCP_HTTP_ADDR", ":7"));
    let address =
        |written: &[(Key, &str)], variables: &[(&str, &str)]| serving(written, variables).http.listen.to_string();
    assert_eq!(address(&[profile], &[]), "127.0.0.1:8228");
    assert_eq!(address(&[profile], &[token]), "0.0.0.0:8080");
    assert_eq!(address(&[profile, listen], &[token]), "127.0.0.1:9");
    assert_eq!(address(&[profile, listen], &[token, chosen]), "0.0.0.0:7");
    let profile = (Key::Profile, "philschmid");
    let engine = |written: &[(Key, &str)]| serving(written, &[("BACKEND", "podman"), ("VERBOSE", "true")]).engine;
    assert_eq!(engine(&[profile]), EngineChoice::Podman);
    assert_eq!(engine(&[profile, (Key::Engine, "docker")]), EngineChoice::Docker);
}

#[test]
fn older_servers_without_bounds_have_those_of_the_operator() {
    let limits = |written: &[(Key, &str)], profile| {
        let config = Config::resolve([flags(written)]).unwrap().as_profile(profile).unwrap();
        (config.sandbox.limits, config.server.ceiling)
    };
    for profile in ProfileName::ALL.iter().copied().filter(|profile| *profile != ProfileName::CodeRunner) {
        let (given, ceiling) = limits(&[], profile);
        let most = (ceiling.cpu_millis, ceiling.memory, ceiling.processes);
        assert_eq!((given.cpu_millis, given.memory, given.processes), most, "{profile:?}");
        let (given, _) = limits(&[(Key::MaxMemory, "1G"), (Key::MaxProcesses, "64")], profile);
        assert_eq!((given.memory.bytes(), given.processes), (1 << 30, 64), "{profile:?}");
        let (given, _) = limits(&[(Key::Memory, "512M"), (Key::Cpus, "0.5")], profile);
        assert_eq!(
            (given.memory.bytes(), given.cpu_millis),
            (512 << 20, 500),
            "{profile:?}: whoever writes it decides"
        );
    }
    let (given, _) = limits(&[], ProfileName::CodeRunner);
    assert_eq!((given.memory.bytes(), given.cpu_millis), (256 << 20, 500), "that one had bounds");
}

#[test]
fn older_servers_wish_for_the_images_user_and_the_operator_decides() {
    let role = |written: &[(Key, &str)], profile| {
        let config = Config::resolve([flags(written)]).unwrap();
        match profile {
            Some(profile) => config.as_profile(profile).unwrap().sandbox.role(),
            None => config.sandbox.role(),
        }
    };
    let wish = Role::ImageUser(Insistence::IfPossible);
    let must = Role::ImageUser(Insistence::Must);
    let (image, own) = ((Key::ContainerUser, "image"), (Key::ContainerUser, "sandbox"));
    assert_eq!((role(&[], None), role(&[image], None), role(&[own], None)), (Role::Guest, must, Role::Guest));
    for profile in [ProfileName::Cloudflare, ProfileName::SandboxServer, ProfileName::Automata, ProfileName::Philschmid]
    {
        assert_eq!(role(&[], Some(profile)), wish, "{profile:?}");
        assert_eq!(role(&[own], Some(profile)), Role::Guest, "{profile:?}");
        assert_eq!(role(&[image], Some(profile)), must, "{profile:?}");
    }
    assert_eq!(role(&[], Some(ProfileName::CodeRunner)), Role::Guest);
}
