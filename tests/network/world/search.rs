//! Looks for a value where it must not be: in processes, in their files, and in directories of the host.
//!
//! Runs with the rights of root in the process that is the outside, because an ordinary user may not look into
//! sandboxes, and a search that may not look finds nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sandpen_tests::processes::Process;

/// The value as it stands, and as it stands in what programs write.
pub struct Needles(Vec<(&'static str, Vec<u8>)>);

impl Needles {
    pub fn of(value: &str) -> Self {
        let percent: String = value
            .bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
        let hexadecimal: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
        let wide: Vec<u8> = value.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut all = vec![("plain", value.as_bytes().to_vec())];
        for (spelling, text) in
            [("percent", percent.into_bytes()), ("hexadecimal", hexadecimal.into_bytes()), ("wide", wide)]
        {
            if !all.iter().any(|(_, known)| *known == text) {
                all.push((spelling, text));
            }
        }
        Self(all)
    }

    fn found_in(&self, bytes: &[u8]) -> Option<&'static str> {
        self.0.iter().find(|(_, needle)| contains(bytes, needle)).map(|(spelling, _)| *spelling)
    }
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let Some(first) = needle.first() else { return false };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        if rest[at..].starts_with(needle) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// What the search has seen, so that a search that saw nothing is not taken for one that found nothing.
#[derive(Debug, Default)]
pub struct Found {
    pub places: BTreeSet<String>,
    pub bytes: u64,
    pub processes: usize,
}

/// Environment, arguments and memory of these processes, and the files that they can have written.
pub fn in_processes(pids: &[u32], needles: &Needles) -> Found {
    let mut found = Found::default();
    let mut roots = BTreeSet::new();
    for process in pids.iter().filter_map(|pid| Process::read(*pid)) {
        for file in ["environ", "cmdline"] {
            let bytes = fs::read(process.file(file)).unwrap_or_default();
            note(&mut found, &bytes, needles, || format!("{file} of {process}"));
        }
        if memory(&process, needles, &mut found) {
            found.processes += 1;
        }
        if roots.insert(process.namespace("mnt")) {
            for directory in ["workspace", "tmp", "home", "run", "var/tmp", "dev/shm", "etc"] {
                in_directory(&process.file("root").join(directory), &[], needles, &mut found);
            }
        }
    }
    found
}

/// Whether the memory of this process can be read at all.
fn memory(process: &Process, needles: &Needles, found: &mut Found) -> bool {
    let Ok(mut memory) = File::open(process.file("mem")) else { return false };
    let maps = process.text("maps");
    let mut seen = false;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        if !access.starts_with('r') || line.ends_with("[vvar]") || line.ends_with("[vsyscall]") {
            continue;
        }
        let bounds = range
            .split_once('-')
            .and_then(|(start, end)| Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)));
        let Some((start, end)) = bounds else { continue };
        seen |= region(&mut memory, start, end, needles, found, || format!("memory of {process} at {line}"));
    }
    seen
}

fn region(
    memory: &mut File,
    start: u64,
    end: u64,
    needles: &Needles,
    found: &mut Found,
    place: impl Fn() -> String,
) -> bool {
    const PIECE: u64 = 4 << 20;
    /// Longer than any needle: one that lies across two pieces is found too.
    const OVERLAP: u64 = 4096;
    let mut at = start;
    let mut seen = false;
    while at < end {
        let size = PIECE.min(end - at);
        let mut bytes = vec![0; size as usize];
        if memory.seek(SeekFrom::Start(at)).is_err() {
            return seen;
        }
        // Reserved memory that nobody has touched cannot be read, and holds nothing.
        let count = memory.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            return seen;
        }
        seen = true;
        note(found, &bytes[..count], needles, &place);
        if at + count as u64 >= end {
            return seen;
        }
        at += (count as u64).saturating_sub(OVERLAP).max(1);
    }
    seen
}

/// Every file below a directory, and its names. `except` are files that may have it.
pub fn in_directory(directory: &Path, except: &[PathBuf], needles: &Needles, found: &mut Found) {
    const DEEPEST: usize = 12;
    walk(directory, except, needles, found, DEEPEST);
}

fn walk(directory: &Path, except: &[PathBuf], needles: &Needles, found: &mut Found, depth: usize) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        note(found, entry.file_name().as_encoded_bytes(), needles, || format!("the name {}", path.display()));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            walk(&path, except, needles, found, depth - 1);
        } else if kind.is_file() && !except.contains(&path) {
            let bytes = fs::read(&path).unwrap_or_default();
            note(found, &bytes, needles, || path.display().to_string());
        }
    }
}

fn note(found: &mut Found, bytes: &[u8], needles: &Needles, place: impl Fn() -> String) {
    found.bytes += bytes.len() as u64;
    if let Some(spelling) = needles.found_in(bytes) {
        found.places.insert(format!("{} ({spelling})", place()));
    }
}
