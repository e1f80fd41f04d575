//! A layer of 300 MB, and processes that die in the middle of it.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use images::registry;
use images::{Store, Work};

use crate::flaky::Flaky;
use crate::place::{Place, reference};
use crate::registries::{noise, settings};
use crate::server::Registry;

const PARTS: usize = 300;

/// A root tree of one file that does not compress, in a registry.
fn filled() -> Option<Registry> {
    let registry = Registry::start()?;
    let place = Place::new();
    let path = place.top.path().join("offered");
    let mut writer = BufWriter::new(File::create(&path).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_path("large").unwrap();
    header.set_mode(0o644);
    header.set_size((PARTS as u64) << 20);
    header.set_cksum();
    writer.write_all(header.as_bytes()).unwrap();
    let part = noise(1 << 20);
    for _ in 0..PARTS {
        writer.write_all(&part).unwrap();
    }
    writer.write_all(&[0; 1024]).unwrap();
    writer.flush().unwrap();
    place.import_path(&path, images::ImageLimits::default()).unwrap();
    fs::remove_file(path).unwrap();
    let target = reference(&format!("{}/large:1", registry.host()));
    registry::push(&place.store, &place.image(), &target, &settings(&[&registry.host()]), &Work::default()).unwrap();
    Some(registry)
}

/// Peak memory can only be told of a process that does nothing else.
fn child(host: &str, store: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "large::pull_in_a_child", "--nocapture"]);
    command.env("SANDPEN_TEST_LARGE", host).env("SANDPEN_TEST_STORE", store);
    command.stdin(Stdio::null());
    command
}

#[test]
fn memory_stays_flat_and_a_killed_pull_leaves_nothing_visible() {
    let Some(registry) = filled() else { return };
    let place = Place::new();
    let store = place.top.path().join("store");
    let way = Flaky::start(registry.port, |_| u64::MAX);
    let mut killed = child(&way.host(), &store).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while way.carried() < 50 << 20 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let seen = Store::open(&store).unwrap();
    assert!(seen.names().unwrap().is_empty());
    assert!(seen.resolve(&reference(&format!("{}/large:1", way.host()))).unwrap().is_none());

    let kept: u64 =
        fs::read_dir(store.join("v1/downloads")).unwrap().flatten().map(|file| file.metadata().unwrap().len()).sum();
    assert!(kept > 1 << 20, "{kept} bytes were kept");
    let second = Flaky::start(registry.port, |_| u64::MAX);
    let name = format!("{}/large:1", second.host());
    let output = child(&second.host(), &store).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let most = ((PARTS as u64 + 1) << 20) - kept;
    assert!(second.carried() < most, "what the killed one fetched was fetched again: {} {kept}", second.carried());
    let image = seen.resolve(&reference(&name)).unwrap().unwrap();
    assert_eq!(fs::metadata(image.layers[0].path.join("large")).unwrap().len(), (PARTS as u64) << 20);

    let fresh = Place::new();
    let output = child(&registry.host(), &fresh.top.path().join("store")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let grown = text.lines().find_map(|line| line.strip_prefix("grown ")).and_then(|grown| grown.parse::<u64>().ok());
    let grown = grown.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    assert!(grown < 64 << 10, "{grown} KiB");
}

#[test]
fn pull_in_a_child() {
    let (Ok(host), Ok(store)) = (std::env::var("SANDPEN_TEST_LARGE"), std::env::var("SANDPEN_TEST_STORE")) else {
        return;
    };
    // Nothing of its own: whoever is killed cannot clear up.
    let store = Arc::new(Store::open(Path::new(&store)).unwrap());
    let before = peak();
    let name = reference(&format!("{host}/large:1"));
    registry::pull(&store, &name, &settings(&[&host]), &Work::default()).unwrap();
    println!("grown {}", peak() - before);
}

/// The most memory this process has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
