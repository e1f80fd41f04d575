//! Guest paths: whatever is written, the result is absolute, bounded, and free of what could lead up.

use sandbox::GuestPath;

pub const SEEDS: &[&[u8]] =
    &[b"a/b", b"/etc/../x", b"./a//b/.", b"..", b"a\0b", b"/", b"\xff/\n", b"....", b"/workspace/../../x", b"a/.. /b"];

/// The first byte chooses the base; the rest is the path.
pub fn guest_path(data: &[u8]) {
    let Some((&choice, written)) = data.split_first() else { return };
    let base = if choice % 2 == 0 { GuestPath::root() } else { GuestPath::workspace() };
    let Ok(path) = GuestPath::resolve(&base, written) else { return };
    let bytes = path.as_bytes();
    assert!(bytes.starts_with(b"/") && bytes.len() <= GuestPath::MAX_BYTES);
    assert!(!bytes.contains(&0));
    for component in path.components() {
        assert!(component != b".." && component != b"." && component.len() <= GuestPath::MAX_COMPONENT_BYTES);
    }
    if !written.starts_with(b"/") {
        assert!(base.contains(&path), "a relative path left its base");
    }
    assert_eq!(GuestPath::resolve(&GuestPath::root(), bytes).as_ref().ok(), Some(&path), "it does not read back");
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        assert_eq!(parent.join(name).as_ref().ok(), Some(&path));
        assert!(parent.contains(&path) && !path.contains(&parent));
    }
    assert!(!path.to_string().chars().any(char::is_control), "a file name could drive a terminal");
}
