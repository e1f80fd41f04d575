//! Layers mounted over each other, which is what they are made for.

use std::io::Write;
use std::process::Command;

use tar::EntryType;

use crate::archive::{Archive, Layout};
use crate::place::Place;
use crate::tools;

/// Lists an overlay of the image, as root or as root of a user namespace.
fn mounted(place: &Place) -> Option<Vec<String>> {
    tools::find("unshare", "layers are not mounted")?;
    let image = place.image();
    let mut directories: Vec<_> = image.directories().map(|path| path.display().to_string()).collect();
    directories.reverse();
    let target = place.top.path().join("naive");
    std::fs::create_dir(&target).unwrap();
    let script =
        "mount -t overlay overlay -o \"lowerdir=$1,userxattr\" \"$2\" && cd \"$2\" && find . -printf '%P %y %m %l\\n'";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let options = ["--mount", "sh", "-c", script, "sh"];
    let output = command.args(options).arg(directories.join(":")).arg(&target).output().unwrap();
    if !output.status.success() {
        _ = writeln!(
            std::io::stdout(),
            "SKIPPED: layers cannot be mounted here: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    Some(lines)
}

#[test]
fn what_a_layer_removes_is_gone_and_what_it_hides_is_hidden() {
    let place = Place::new();
    let layers = [
        Archive::new()
            .directory("etc", 0o755)
            .file("etc/gone", "1")
            .file("etc/kept", "1")
            .directory("var", 0o755)
            .file("var/hidden", "1")
            .directory("opt", 0o755)
            .file("opt/old", "1")
            .bytes(),
        Archive::new()
            .directory("etc", 0o750)
            .file("etc/.wh.gone", "")
            .directory("var", 0o755)
            .file("var/.wh..wh..opq", "")
            .file("var/new", "2")
            .file(".wh.opt", "")
            .bytes(),
        Archive::new()
            .directory("opt", 0o755)
            .entry(EntryType::Regular, "opt/tool", "", b"3", 0o755)
            .symlink("opt/link", "tool")
            .bytes(),
    ];
    place.import(&Layout::new(&layers).tar()).unwrap();
    let Some(lines) = mounted(&place) else { return };
    let expected = [
        "d 755",
        "etc d 750",
        "etc/kept f 644",
        "opt d 755",
        "opt/link l 777 tool",
        "opt/tool f 755",
        "var d 755",
        "var/new f 644",
    ];
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    assert_eq!(lines, expected);
}
