//! What a program of the sandbox sees of its own walls, as one line of JSON: for the report of an engine that cannot look
//! from outside.

use std::fmt::Write;
use std::fs;
use std::io::Write as _;

use rustix::fs::StatVfsMountFlags;

/// Lines of `/proc/self/status` that tell of rights.
const RIGHTS: [&str; 10] =
    ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// What limits are called, and where daemons show them on version 2 and on version 1.
const LIMITS: [(&str, &str, &str); 5] = [
    ("memory", "memory.max", "memory/memory.limit_in_bytes"),
    ("swap", "memory.swap.max", "memory/memory.memsw.limit_in_bytes"),
    ("processes", "pids.max", "pids/pids.max"),
    ("cpu", "cpu.max", "cpu/cpu.cfs_quota_us"),
    ("cpu_period", "cpu.max", "cpu/cpu.cfs_period_us"),
];

pub fn main() -> i32 {
    i32::from(writeln!(std::io::stdout(), "{}", report()).is_err())
}

fn report() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = RIGHTS.iter().map(|name| (*name, field(&status, name)));
    let namespaces = NAMESPACES.iter().map(|name| {
        let link = fs::read_link(format!("/proc/self/ns/{name}")).ok();
        (*name, link.map(|link| link.to_string_lossy().into_owned()))
    });
    let limits = LIMITS.iter().map(|(name, second, first)| {
        let read = |path: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}")).ok();
        (*name, read(second).or_else(|| read(first)).map(|text| text.trim().to_owned()))
    });
    let read_only = rustix::fs::statvfs("/").is_ok_and(|root| root.f_flag.contains(StatVfsMountFlags::RDONLY));
    let uid_map = fs::read_to_string("/proc/self/uid_map").ok().map(|map| words(&map));
    let mut text = String::from("{");
    for (name, object) in [("rights", object(rights)), ("namespaces", object(namespaces)), ("limits", object(limits))] {
        let _ = write!(text, "\"{name}\":{object},");
    }
    let _ = write!(text, "\"uid_map\":{},\"root_is_read_only\":{read_only}}}", string(uid_map));
    text
}

fn field(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(words))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, Option<String>)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{}", string(value))).collect();
    format!("{{{}}}", fields.join(","))
}

fn string(text: Option<String>) -> String {
    let Some(text) = text else { return "null".to_owned() };
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whole_and_written_safely() {
        let status = "Name:\tx\nCapEff:\t0000000000000000\nUid:\t1000\t1000\t1000\t1000\n";
        assert_eq!(field(status, "Uid").as_deref(), Some("1000 1000 1000 1000"));
        assert_eq!(field(status, "Cap"), None);
        assert_eq!(string(Some("a\"b\\c\nd".into())), r#""a\"b\\c\u000ad""#);
        assert_eq!(object([("a", None), ("b", Some("c".into()))].into_iter()), r#"{"a":null,"b":"c"}"#);
    }
}
