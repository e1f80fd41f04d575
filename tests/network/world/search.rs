//! Looks for a value where it must not be: in processes, in their files, and in directories of the host.
//!
//! Runs with the rights of root in the process that is the outside, because an ordinary user may not look into
//! sandboxes, and a search that may not look finds nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sandpen_tests::processes::{self, Process};

/// The value as it stands, and as it stands in what programs write.
pub struct Needles(Vec<(&'static str, Vec<u8>)>);

impl Needles {
    pub fn of(value: &str) -> Self {
        let hexadecimal: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
        let wide: Vec<u8> = value.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut all = vec![("plain", value.as_bytes().to_vec())];
        for (spelling, text) in
            [("percent", percent(value).into_bytes()), ("hexadecimal", hexadecimal.into_bytes()), ("wide", wide)]
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

/// As it stands in a URL.
pub fn percent(value: &str) -> String {
    let spell = |byte: u8| match byte {
        b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(spell).collect()
}

/// From one first byte to the next, by a function of the C library: memory is large, and tests are not optimised.
fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let Some(first) = needle.first() else { return false };
    let mut rest = bytes;
    while rest.skip_until(*first).is_ok_and(|skipped| skipped > 0) {
        let at = bytes.len() - rest.len() - 1;
        if bytes[at..].starts_with(needle) {
            return true;
        }
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
        // A helper on the host has the host's own files.
        let is_inside = process.namespace("pid") != processes::namespace("/proc/self/ns/pid");
        if is_inside && roots.insert(process.namespace("mnt")) {
            for directory in ["workspace", "tmp", "home", "run", "dev/shm"] {
                let directory = process.file("root").join(directory);
                // A link in the sandbox would be followed in the tree of whoever follows it: ours.
                if fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir()) {
                    in_directory(&directory, &[], needles, &mut found);
                }
            }
        }
    }
    found
}

const PAGE: u64 = 4096;

/// Whether the memory of this process can be read at all.
fn memory(process: &Process, needles: &Needles, found: &mut Found) -> bool {
    let (Ok(memory), Ok(pages)) = (File::open(process.file("mem")), File::open(process.file("pagemap"))) else {
        return false;
    };
    let maps = process.text("maps");
    let mut seen = false;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        let bounds = range
            .split_once('-')
            .and_then(|(start, end)| Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)));
        // What cannot be written is as it is in its file, and files are searched by themselves.
        let is_own = access.starts_with("rw") || !line.contains('/');
        let Some((start, end)) = bounds.filter(|_| is_own) else { continue };
        for (start, end) in present(&pages, start, end) {
            let mut bytes = vec![0; (end - start) as usize];
            // Pages of devices and of the kernel itself cannot be read, and hold nothing of the process.
            let Ok(count) = memory.read_at(&mut bytes, start) else { continue };
            seen = true;
            note(found, &bytes[..count], needles, || format!("memory of {process} at {line}"));
        }
    }
    seen
}

/// The runs of pages that hold something: what was reserved and never touched would be read as zeroes, by the gigabyte.
fn present(pages: &File, start: u64, end: u64) -> Vec<(u64, u64)> {
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut entries = vec![0; ((end - start) / PAGE * 8) as usize];
    let count = pages.read_at(&mut entries, start / PAGE * 8).unwrap_or(0);
    for (index, entry) in entries[..count].chunks_exact(8).enumerate() {
        let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
        if entry & PRESENT_OR_SWAPPED == 0 {
            continue;
        }
        let at = start + index as u64 * PAGE;
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end += PAGE,
            Some(_) | None => runs.push((at, at + PAGE)),
        }
    }
    runs
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
