//! Contexts, archives and Dockerfiles that want more than they may.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::place::Place;

#[test]
fn nothing_outside_of_the_context_is_copied() {
    let place = Place::new();
    place.0.write("secret", "the canary");
    place.file("file", "x").link("up", "../secret").link("root", "/etc/passwd").link("parent", "..");
    for source in ["../secret", "dir/../../secret", "up", "root", "parent/secret", "/../secret"] {
        place.fails(
            &format!("FROM scratch\nCOPY {source} /x\n"),
            "invalid_input",
            "leads outside of the build context",
        );
    }
    place.build("FROM scratch\nCOPY . /all\n");
    let tree = place.tree("made:1");
    assert_eq!((tree["all/up"].0, &*tree["all/up"].4), ('l', "../secret"));
    assert!(tree.values().all(|entry| !entry.4.contains("canary")));
}

#[test]
fn odd_names_are_names_and_odd_files_are_refused() {
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"new\nline \xff\x1b[2J");
    fs::write(place.context().join(odd), "x").unwrap();
    place.file("dir/file", "y");
    place.build("FROM scratch\nCOPY . /all\n");
    assert_eq!(place.tree("made:1").len(), 4);
    let made = Command::new("mkfifo").arg(place.context().join("dir/fifo")).status().unwrap();
    assert!(made.success());
    place.fails("FROM scratch\nCOPY dir /all\n", "invalid_input", "is a device or FIFO");
    fs::remove_file(place.context().join("dir/fifo")).unwrap();
    let _listening = std::os::unix::net::UnixListener::bind(place.context().join("dir/socket")).unwrap();
    place.build("FROM scratch\nCOPY dir /all\n");
    assert_eq!(place.tree("made:1").len(), 2, "a socket is passed over");
    place.file("dir/.wh.file", "");
    place.fails("FROM scratch\nCOPY dir /all\n", "unsupported", "no layer can have a file that is called");
}

#[test]
fn an_archive_stays_in_the_image() {
    let place = Place::new();
    place.0.write("outside/canary", "untouched");
    let archive = |name: &str, fill: &dyn Fn(&mut tar::Builder<fs::File>)| {
        let mut builder = tar::Builder::new(fs::File::create(place.context().join(name)).unwrap());
        fill(&mut builder);
        builder.finish().unwrap();
    };
    let header = |kind: tar::EntryType, name: &[u8], size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        header
    };
    archive("up.tar", &|builder| {
        builder.append(&header(tar::EntryType::Regular, b"../../x", 1), &b"x"[..]).unwrap();
    });
    place.fails("FROM scratch\nADD up.tar /\n", "invalid_input", "goes up");
    let outside = place.0.work().join("outside");
    archive("link.tar", &|builder| {
        let mut link = header(tar::EntryType::Symlink, b"link", 0);
        link.set_link_name(&outside).unwrap();
        link.set_cksum();
        builder.append(&link, std::io::empty()).unwrap();
        builder.append(&header(tar::EntryType::Regular, b"link/canary", 5), &b"other"[..]).unwrap();
    });
    place.build("FROM scratch\nADD link.tar /\n");
    assert_eq!(fs::read_to_string(outside.join("canary")).unwrap(), "untouched");
    let inside = format!("{}/canary", outside.to_str().unwrap().trim_start_matches('/'));
    assert_eq!(place.tree("made:1")[&inside].4, "other", "a link of an image leads to a place in the image");
    archive("hard.tar", &|builder| {
        let mut link = header(tar::EntryType::Link, b"hard", 0);
        link.set_link_name("etc/shadow").unwrap();
        link.set_cksum();
        builder.append(&link, std::io::empty()).unwrap();
    });
    place.fails("FROM scratch\nADD hard.tar /\n", "invalid_input", "leads to nothing in its archive");
}

#[test]
fn what_is_not_known_is_named_with_its_line() {
    let place = Place::new();
    place.file("f", "x");
    for (dockerfile, kind, part) in [
        ("FROM scratch\n\nFETCH x\n", "unsupported", "line 3 of the Dockerfile: \\\"FETCH\\\""),
        ("FROM scratch\nONBUILD RUN x\n", "unsupported", "ONBUILD"),
        ("FROM scratch\nRUN --mount=type=secret x\n", "unsupported", "--mount"),
        ("COPY f /\n", "invalid_input", "line 1"),
        (
            "FROM scratch\nCOPY missing /\n",
            "not_found",
            "line 2 of the Dockerfile: there is no \\\"missing\\\" to copy",
        ),
        ("FROM scratch\nCOPY a* b* /\n", "not_found", "nothing is called like"),
        ("FROM scratch\nCOPY f /f\nCOPY f /f/below\n", "invalid_input", "line 3"),
        ("FROM scratch\nEXPOSE x\n", "invalid_input", "is not a port"),
        ("FROM --platform=linux/s390x scratch\n", "unsupported", "line 1 of the Dockerfile: this machine builds for"),
        ("FROM trees.sandpen.invalid/x\n", "not_found", "there is no image"),
    ] {
        place.fails(dockerfile, kind, part);
    }
    place.fails_with("FROM scratch\n", &["--target", "x"], "not_found", "no stage");
    place.fails_with("FROM scratch\n", &["--platform", "windows/amd64"], "unsupported", "this machine builds for");
    let done = place.0.run(&["image", "build", "-t", "x", "missing"]);
    assert_eq!(done.code, Some(1));
    done.says("there is no directory");
}
