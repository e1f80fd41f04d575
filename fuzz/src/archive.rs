//! Archives: whatever is in them, nothing is written outside of their directory, and limits hold.

use std::fs;
use std::path::Path;

use images::{Directory, Limits, Links, unpack};

use crate::bytes::scratch;

pub const SEEDS: &[&[u8]] = &[
    &entries(b"file", b'0', b"", b"directory/file", b'0', b""),
    &entries(b"link", b'2', b"..", b"link/outside", b'0', b""),
    &entries(b"link", b'2', b"/etc", b"link", b'5', b""),
    &entries(b"hard", b'1', b"../canary", b"hard", b'0', b""),
    &entries(b"../outside", b'0', b"", b"/absolute", b'5', b""),
    &entries(b"long", b'L', b"", b"extended", b'x', b""),
    b"\x01\x1f\x8b\x08\x00",
];

/// A choice, then two entries of eight bytes each: name, kind, and what a link points to.
const fn entries(name: &[u8], kind: u8, link: &[u8], next: &[u8], next_kind: u8, next_link: &[u8]) -> [u8; 2049] {
    let mut archive = [0u8; 2049];
    archive[0] = 3;
    header(&mut archive, 1, name, kind, link);
    header(&mut archive, 1025, next, next_kind, next_link);
    archive
}

const fn header(archive: &mut [u8; 2049], at: usize, name: &[u8], kind: u8, link: &[u8]) {
    put(archive, at, name);
    put(archive, at + 100, b"0000644\0");
    put(archive, at + 124, b"00000000010\0");
    archive[at + 156] = kind;
    put(archive, at + 157, link);
    put(archive, at + 257, b"ustar\x0000");
}

const fn put(archive: &mut [u8; 2049], at: usize, bytes: &[u8]) {
    let mut index = 0;
    while index < bytes.len() {
        archive[at + index] = bytes[index];
        index += 1;
    }
}

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 100, ratio: 50, path_bytes: 512, depth: 16 };

/// The first byte chooses how links are taken, and whether checksums are made right so that more gets past the parser.
pub fn archive(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let top = scratch();
    let inside = top.path().join("inside");
    fs::create_dir(&inside).expect("an empty directory takes another");
    fs::write(top.path().join("canary"), "canary").expect("an empty directory takes a file");
    let mut archive = data.to_vec();
    if choice & 1 == 1 {
        for header in archive.chunks_exact_mut(512) {
            make_checksum(header);
        }
    }
    let links = if choice & 2 == 2 { Links::Any } else { Links::Inside };
    let directory = Directory::open(&inside).expect("the directory is there");
    let result = unpack(archive.as_slice(), &directory, &LIMITS, links);
    let (count, bytes) = measure(&inside);
    assert!(
        bytes <= LIMITS.bytes && count <= LIMITS.entries * LIMITS.depth as u64,
        "limits do not hold: {count} {bytes}"
    );
    if let Ok(summary) = result {
        assert!(summary.entries <= LIMITS.entries && summary.bytes <= LIMITS.bytes);
    }
    let outside: Vec<_> =
        fs::read_dir(top.path()).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(outside.len(), 2, "something was written outside: {outside:?}");
    assert_eq!(fs::read(top.path().join("canary")).expect("it is there"), b"canary");
}

fn make_checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Entries and bytes below a directory, links not followed.
fn measure(directory: &Path) -> (u64, u64) {
    let (mut count, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let stat = entry.path().symlink_metadata().expect("an entry has a stat");
        assert!(stat.is_file() || stat.is_dir() || stat.is_symlink(), "neither file, directory nor link");
        count += 1;
        if stat.is_dir() {
            let below = measure(&entry.path());
            count += below.0;
            bytes += below.1;
        } else if stat.is_file() {
            bytes += stat.len();
        }
    }
    (count, bytes)
}
