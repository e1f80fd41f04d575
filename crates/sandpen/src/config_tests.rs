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
    let environment: Vec<_> = config.sandbox.environment.iter().collect();
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
        (Key::Image, "python:3.12"),
    ] {
        assert!(Config::resolve([flags(&[(key, value)])]).is_err(), "{key:?} took {value:?}");
    }
}

#[test]
fn an_image_may_be_named_from_the_current_directory() {
    let config = Config::resolve([flags(&[(Key::Image, "dir:root")])]).unwrap();
    assert_eq!(config.sandbox.image, Image::Directory(std::path::absolute("root").unwrap()));
}
