use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use tar::{EntryType, Header};

use super::*;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Descriptor, OCI_LAYER};
use crate::store::Writing;

/// One entry of a layer: what it is, by its first character, then mode, owner and the rest.
#[derive(Clone, Copy)]
enum Put<'a> {
    Directory(&'a str, u32, u64),
    File(&'a str, u32, u64, &'a str),
    Link(&'a str, &'a str),
    Same(&'a str, &'a str),
    Gone(&'a str),
}

use Put::{Directory, File, Gone, Link, Same};

struct Place {
    _directory: tempfile::TempDir,
    store: Arc<Store>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path()).unwrap());
        Self { _directory: directory, store }
    }

    fn layer(&self, entries: &[Put<'_>]) -> ImageLayer {
        let mut builder = tar::Builder::new(Vec::new());
        for entry in entries {
            let mut header = Header::new_gnu();
            header.set_size(0);
            header.set_mtime(entries.len() as u64);
            match *entry {
                Directory(path, mode, owner) => {
                    header.set_entry_type(EntryType::Directory);
                    own(&mut header, mode, owner);
                    builder.append_data(&mut header, path, std::io::empty()).unwrap();
                }
                File(path, mode, owner, contents) => {
                    own(&mut header, mode, owner);
                    header.set_size(contents.len() as u64);
                    builder.append_data(&mut header, path, contents.as_bytes()).unwrap();
                }
                Link(path, target) => {
                    header.set_entry_type(EntryType::Symlink);
                    own(&mut header, 0o777, 0);
                    builder.append_link(&mut header, path, target).unwrap();
                }
                Same(path, target) => {
                    header.set_entry_type(EntryType::Link);
                    own(&mut header, 0o644, 0);
                    builder.append_link(&mut header, path, target).unwrap();
                }
                Gone(path) => {
                    own(&mut header, 0o600, 0);
                    builder.append_data(&mut header, path, std::io::empty()).unwrap();
                }
            }
        }
        let bytes = builder.into_inner().unwrap();
        let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        compressed.write_all(&bytes).unwrap();
        let compressed = compressed.finish().unwrap();
        let blob = Descriptor::new(OCI_LAYER, Digest::of(&compressed), compressed.len() as u64);
        let writing = Writing::begin(&self.store).unwrap();
        writing.put(&compressed[..], &blob, &CancellationToken::new()).unwrap();
        ImageLayer { diff_id: Digest::of(&bytes), blob, path: PathBuf::new() }
    }

    fn compare(&self, below: &[&[Put<'_>]], wanted: &[&[Put<'_>]], made: &[&[Put<'_>]]) -> Comparison {
        let layers = |stack: &[&[Put<'_>]]| stack.iter().map(|entries| self.layer(entries)).collect::<Vec<_>>();
        let (below, wanted, made) = (layers(below), layers(wanted), layers(made));
        let sides = Sides { below: &below, wanted: &wanted, made: &made };
        let ignored = |path: &[u8]| path == b"proc";
        compare(&self.store, sides, &ignored, 100, &CancellationToken::new()).unwrap()
    }

    fn told(&self, below: &[&[Put<'_>]], wanted: &[&[Put<'_>]], made: &[&[Put<'_>]]) -> Vec<(String, What)> {
        let found = self.compare(below, wanted, made).differences;
        found.into_iter().map(|one| (String::from_utf8(one.path).unwrap(), one.what)).collect()
    }
}

fn own(header: &mut Header, mode: u32, owner: u64) {
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
}

fn told(path: &str, what: What) -> Vec<(String, What)> {
    vec![(path.to_owned(), what)]
}

const BASE: &[Put<'static>] = &[
    Directory("etc/", 0o755, 0),
    File("etc/name", 0o644, 0, "base"),
    File("etc/su", 0o4755, 0, "su"),
    Same("etc/second", "etc/name"),
    Directory("usr/", 0o755, 0),
    Directory("usr/doc/", 0o755, 0),
    File("usr/doc/one", 0o644, 0, "1"),
    File("usr/doc/two", 0o644, 0, "2"),
];

#[test]
fn each_kind_of_difference_is_told() {
    let place = Place::new();
    let file = |mode, owner, contents| [Directory("w/", 0o755, 1), File("w/f", mode, owner, contents)];
    let wanted = file(0o644, 1, "x");
    assert_eq!(place.told(&[BASE], &[&wanted], &[&wanted]), []);
    assert_eq!(place.told(&[BASE], &[&wanted], &[&file(0o644, 1, "y")]), told("w/f", What::Contents));
    assert_eq!(place.told(&[BASE], &[&wanted], &[&file(0o600, 1, "x")]), told("w/f", What::Mode));
    assert_eq!(place.told(&[BASE], &[&wanted], &[&file(0o644, 0, "x")]), told("w/f", What::Owner));
    assert_eq!(place.told(&[BASE], &[&wanted], &[&wanted[..1]]), told("w/f", What::Missing));
    assert_eq!(place.told(&[BASE], &[&wanted[..1]], &[&wanted]), told("w/f", What::Extra));
    assert_eq!(place.told(&[BASE], &[&wanted], &[]), told("w", What::Missing), "what is in it is not told again");
    let link = |target| [Directory("w/", 0o755, 1), Link("w/f", target)];
    assert_eq!(place.told(&[BASE], &[&wanted], &[&link("g")]), told("w/f", What::Kind));
    assert_eq!(place.told(&[BASE], &[&link("h")], &[&link("g")]), told("w/f", What::Target));
}

#[test]
fn the_same_tree_may_come_in_other_layers() {
    let place = Place::new();
    let one: &[Put<'_>] = &[File("a", 0o644, 0, "1"), File("b", 0o644, 0, "old"), File("c", 0o644, 0, "gone")];
    let two: &[Put<'_>] = &[File("b", 0o644, 0, "new"), Gone(".wh.c")];
    let both: &[Put<'_>] = &[File("a", 0o644, 0, "1"), File("b", 0o644, 0, "new")];
    let compared = place.compare(&[BASE], &[both], &[one, two]);
    assert_eq!((compared.differences.len(), compared.same), (0, 2));
    assert_eq!(place.told(&[BASE], &[both], &[one]).len(), 2);
}

#[test]
fn what_only_one_side_touches_is_compared_with_what_is_below() {
    let place = Place::new();
    let touched: &[Put<'_>] = &[Directory("etc/", 0o755, 0), File("etc/name", 0o644, 0, "base")];
    assert_eq!(place.told(&[BASE], &[touched], &[]), []);
    assert_eq!(place.told(&[BASE], &[], &[touched]), []);
    // A second name of a file whose first is of no interest.
    assert_eq!(place.told(&[BASE], &[&[File("etc/second", 0o644, 0, "base")]], &[]), []);
    assert_eq!(place.told(&[BASE], &[&[File("etc/second", 0o644, 0, "new")]], &[]), told("etc/second", What::Contents));
    // No sandbox takes over that bit.
    assert_eq!(place.told(&[BASE], &[&[File("etc/su", 0o755, 0, "su")]], &[]), []);
    assert_eq!(place.told(&[BASE], &[&[Gone("etc/.wh.name")]], &[]), told("etc/name", What::Extra));
    assert_eq!(place.told(&[BASE], &[], &[&[Gone("etc/.wh.nothing")]]), []);
    assert_eq!(place.told(&[BASE], &[&[File("proc", 0o644, 0, "x")]], &[]), [], "it is ignored");
}

#[test]
fn removals_are_alike_however_they_are_written_down() {
    let place = Place::new();
    let opaque: &[Put<'_>] =
        &[Directory("usr/doc/", 0o755, 0), Gone("usr/doc/.wh..wh..opq"), File("usr/doc/two", 0o644, 0, "2")];
    let single: &[Put<'_>] = &[Directory("usr/doc/", 0o755, 0), Gone("usr/doc/.wh.one")];
    let again: &[Put<'_>] = &[Directory("usr/doc/", 0o755, 0), File("usr/doc/two", 0o644, 0, "2")];
    assert_eq!(place.told(&[BASE], &[opaque], &[single]), []);
    assert_eq!(place.told(&[BASE], &[opaque], &[&[Gone("usr/.wh.doc")], again]), []);
    assert_eq!(place.told(&[BASE], &[opaque], &[]), told("usr/doc/one", What::Extra));
    assert_eq!(place.told(&[BASE], &[], &[opaque]), told("usr/doc/one", What::Missing));
    assert_eq!(place.told(&[BASE], &[&[Gone("usr/.wh.doc")]], &[]), told("usr/doc", What::Extra));
    assert_eq!(place.told(&[BASE], &[&[File("usr", 0o644, 0, "")]], &[]), told("usr", What::Kind));
}

#[test]
fn a_long_list_is_cut_and_counted() {
    let place = Place::new();
    let names: Vec<String> = (0..150).map(|number| format!("f{number:03}")).collect();
    let many: Vec<Put<'_>> = names.iter().map(|name| File(name, 0o644, 0, "x")).collect();
    let compared = place.compare(&[], &[&many], &[]);
    assert_eq!((compared.differences.len(), compared.more), (100, 50));
}

#[test]
fn large_files_that_nobody_asks_for_are_passed_over() {
    let place = Place::new();
    let large: String = (0..400_000).map(|number| format!("{number:06}")).collect();
    let below: &[Put<'_>] = &[File("large", 0o644, 0, &large), File("second", 0o644, 0, &large), BASE[0], BASE[1]];
    let changed = |contents| [File("etc/name", 0o644, 0, contents)];
    assert_eq!(place.told(&[below], &[&changed("one")], &[&changed("two")]), told("etc/name", What::Contents));
    assert_eq!(place.told(&[below], &[&changed("one")], &[]), told("etc/name", What::Contents));

    let layers = [place.layer(below)];
    let wanted = [Origin { layer: 0, path: b"etc/name".to_vec() }].into();
    let mut picked = Vec::new();
    let mut take = |_: &Origin, contents: &mut dyn std::io::Read, _| {
        contents.read_to_end(&mut picked).map(drop).map_err(Error::io("reading"))
    };
    pick(&place.store, &layers, &wanted, &CancellationToken::new(), &mut take).unwrap();
    assert_eq!(picked, b"base");
}

#[test]
fn a_file_in_the_place_of_a_directory_hides_what_was_in_it() {
    let place = Place::new();
    let (directory, file) = (Directory("a/", 0o755, 0), File("a/b", 0o644, 0, "x"));
    let below: &[&[Put<'_>]] = &[&[directory, file], &[File("a", 0o644, 0, "")]];
    assert_eq!(place.told(below, &[&[directory, file]], &[&[directory]]), told("a/b", What::Missing));
    assert_eq!(place.told(below, &[&[directory, file]], &[&[directory, file]]), []);
}
