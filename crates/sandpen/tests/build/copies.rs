//! COPY, ADD and WORKDIR.

use std::fs;
use std::process::Command;

use crate::place::Place;

#[test]
fn files_go_where_docker_puts_them() {
    let place = Place::new();
    place.file("one", "1").file("two", "2").file("dir/a", "a").file("dir/sub/b", "b").mode("two", 0o600);
    place.mode("dir/sub", 0o750).mode("one", 0o755).mode("dir/a", 0o644).mode("dir/sub/b", 0o644);
    place.build(
        "FROM scratch\nCOPY one /plain\nCOPY one two /several/\nCOPY dir /contents\nCOPY dir/s* dir/a /globbed/\n\
         WORKDIR /srv/deep\nCOPY one .\nCOPY two relative/name\nADD [\"one\", \"/with space\"]\n",
    );
    let tree = place.tree("made:1");
    let shown: Vec<String> = tree
        .iter()
        .map(|(path, (kind, mode, user, group, holds))| format!("{kind} {mode:o} {user}:{group} {path} {holds}"))
        .collect();
    assert_eq!(
        shown,
        [
            "d 755 0:0 contents ",
            "f 644 0:0 contents/a a",
            "d 750 0:0 contents/sub ",
            "f 644 0:0 contents/sub/b b",
            "d 755 0:0 globbed ",
            "f 644 0:0 globbed/a a",
            "f 644 0:0 globbed/b b",
            "f 755 0:0 plain 1",
            "d 755 0:0 several ",
            "f 755 0:0 several/one 1",
            "f 600 0:0 several/two 2",
            "d 755 0:0 srv ",
            "d 755 0:0 srv/deep ",
            "f 755 0:0 srv/deep/one 1",
            "d 755 0:0 srv/deep/relative ",
            "f 600 0:0 srv/deep/relative/name 2",
            "f 755 0:0 with space 1",
        ]
    );
}

#[test]
fn links_of_the_image_are_followed_and_links_in_directories_are_kept() {
    let place = Place::new();
    place.import_base();
    place.file("dir/file", "x").link("dir/link", "/etc/passwd").link("named", "dir/file");
    fs::hard_link(place.context().join("dir/file"), place.context().join("dir/second")).unwrap();
    place.build("FROM base:1\nCOPY dir /alias/\nCOPY named /alias/copied\n");
    let tree = place.tree("made:1");
    assert_eq!(tree["alias"].0, 'l', "the link of the image is still one");
    assert_eq!(tree["usr/share/real/file"].4, "x");
    assert_eq!((tree["usr/share/real/link"].0, &*tree["usr/share/real/link"].4), ('l', "/etc/passwd"));
    assert_eq!((tree["usr/share/real/copied"].0, &*tree["usr/share/real/copied"].4), ('f', "x"));
    assert_eq!((tree["usr/share/real/second"].0, &*tree["usr/share/real/second"].4), ('h', "usr/share/real/file"));
}

#[test]
fn what_is_copied_belongs_to_whom_it_is_said() {
    let place = Place::new();
    place.import_base();
    place.file("file", "x").file("dir/sub/file", "y");
    place.build(
        "FROM base:1\nCOPY --chown=web:staff file /by/name\nCOPY --chown=7 --chmod=4711 file /by/number\n\
         COPY --chown=web dir /mine\nUSER web\nWORKDIR /srv/web\nCOPY file /still/root\n",
    );
    let tree = place.tree("made:1");
    let owner = |path: &str| (tree[path].2, tree[path].3);
    assert_eq!(owner("by"), (33, 50), "what is made on the way is theirs too");
    assert_eq!(owner("by/name"), (33, 50));
    assert_eq!((owner("by/number"), tree["by/number"].1), ((7, 7), 0o4711));
    assert_eq!((owner("mine"), owner("mine/sub"), owner("mine/sub/file")), ((33, 34), (33, 34), (33, 34)));
    assert_eq!((owner("srv"), owner("srv/web")), ((33, 34), (33, 34)));
    assert_eq!((owner("still"), owner("still/root")), ((0, 0), (0, 0)));
    place.fails(
        "FROM base:1\nCOPY --chown=ghost file /x\n",
        "invalid_input",
        "line 2 of the Dockerfile: the image has no user",
    );
    place.fails("FROM base:1\nCOPY --chmod=u+x file /x\n", "invalid_input", "octal");
}

#[test]
fn directories_that_exist_stay_as_they_are() {
    let place = Place::new();
    place.file("etc/new", "n").file("inner/private/new", "n").mode("inner/private", 0o711);
    place.build(
        "FROM scratch AS base\nWORKDIR /private\nFROM base\nCOPY --chown=5:6 --chmod=700 inner/private /made/private\n\
         FROM scratch\nCOPY --from=1 /made /\nCOPY etc /private\nCOPY inner /\n",
    );
    let tree = place.tree("made:1");
    assert_eq!((tree["private"].1, tree["private"].2), (0o711, 0), "one that is copied over another brings its mode");
    assert_eq!(tree["private/new"].4, "n");
}

#[test]
fn stages_and_images_can_be_copied_from() {
    let place = Place::new();
    place.import_base();
    place.file("file", "from the first");
    place.build(
        "FROM scratch AS first\nCOPY --chown=3:4 file /out/file\nFROM first AS second\nCOPY file /more\n\
         FROM scratch\nCOPY --from=first /out /all/\nCOPY --from=1 /more /more\nCOPY --from=base:1 /alias/../../../etc/passwd /users\n",
    );
    let tree = place.tree("made:1");
    assert_eq!((tree["all/file"].2, tree["all/file"].3, &*tree["all/file"].4), (3, 4, "from the first"));
    assert!(tree["users"].4.starts_with("root:x:0:0"));
    assert_eq!(tree.len(), 4, "{tree:?}");
    place.fails("FROM scratch\nCOPY --from=base:1 /missing /\n", "not_found", "there is no");
}

#[test]
fn ignored_files_are_not_there() {
    let place = Place::new();
    place
        .file("keep", "k")
        .file("secret.key", "s")
        .file("logs/a", "a")
        .file("logs/keep/b", "b")
        .file("deep/x/secret.key", "s");
    place.file(".dockerignore", "# comment\n**/*.key\nlogs\n!logs/keep\n");
    place.build("FROM scratch\nCOPY . /all\n");
    let paths: Vec<String> = place.tree("made:1").into_keys().collect();
    assert_eq!(
        paths,
        [
            "all",
            "all/.dockerignore",
            "all/deep",
            "all/deep/x",
            "all/keep",
            "all/logs",
            "all/logs/keep",
            "all/logs/keep/b"
        ]
    );
    place.fails("FROM scratch\nCOPY secret.key /\n", "not_found", ".dockerignore leaves it out");
    place.0.write("Dockerfile.dockerignore", "*\n!keep\n");
    place.build("FROM scratch\nCOPY . /all\n");
    assert_eq!(place.tree("made:1").into_keys().collect::<Vec<_>>(), ["all", "all/keep"]);
}

#[test]
fn archives_are_unpacked_by_add_and_copied_by_copy() {
    let place = Place::new();
    place.import_base();
    place.file("in/dir/file", "x").link("in/link", "dir").file("data.gz", "not an archive");
    let tar = |arguments: &[&str]| {
        let done = Command::new("tar").args(arguments).current_dir(place.context()).status().unwrap();
        assert!(done.success(), "{arguments:?}");
    };
    tar(&["--owner=11", "--group=12", "-C", "in", "-cf", "plain.tar", "dir", "link"]);
    tar(&["--owner=11", "--group=12", "-C", "in", "-czf", "packed.tgz", "dir"]);
    place.build(
        "FROM base:1\nADD plain.tar /plain/\nADD --chown=5:6 packed.tgz /alias\nADD data.gz /data/\nCOPY plain.tar /copied\n",
    );
    let tree = place.tree("made:1");
    assert_eq!((tree["plain/dir/file"].2, tree["plain/dir/file"].3, &*tree["plain/dir/file"].4), (11, 12, "x"));
    assert_eq!((tree["plain/link"].0, &*tree["plain/link"].4), ('l', "dir"));
    assert_eq!((tree["usr/share/real/dir/file"].2, &*tree["usr/share/real/dir/file"].4), (5, "x"));
    assert_eq!(tree["data/data.gz"].4, "not an archive");
    assert_eq!(tree["copied"].0, 'f');
    place.fails("FROM scratch\nADD https://example.com/x /x\n", "unsupported", "only local files are added");
}
