//! What an export has nothing to do with.

use sandbox::GuestPath;

/// Whether a path is neither exported nor compared: what a system makes for itself, and what programs keep for the moment
/// or can make again.
///
/// Files below `/tmp` that a caller wrote are copied all the same, see [`is_passing`]: a command may read them.
pub fn is_left_out(path: &GuestPath, home: &GuestPath) -> bool {
    let is_below = |top: &str| {
        let top = top.as_bytes();
        let bytes = path.as_bytes();
        bytes == top || bytes.strip_prefix(top).is_some_and(|rest| rest.starts_with(b"/"))
    };
    let own = ["/dev", "/proc", "/sys", "/run", "/mnt", "/packages", "/node_modules", tools::export::CONTEXT];
    let made_up = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/.dockerenv"];
    own.iter().any(|top| is_below(top))
        || made_up.iter().any(|file| path.as_bytes() == file.as_bytes())
        || home.join(b".cache").is_ok_and(|cache| cache.contains(path))
        || path.components().any(|name| name == b"__pycache__" || name.starts_with(b".run-"))
}

/// Whether what is left there is not worth keeping.
pub fn is_passing(path: &GuestPath) -> bool {
    path.as_bytes().starts_with(b"/tmp/") || path.as_bytes() == b"/tmp"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_makes_and_what_can_be_made_again_is_left_out() {
        let home: GuestPath = "/home/sandbox".parse().unwrap();
        for (path, expected) in [
            ("/proc", true),
            ("/run/x", true),
            ("/runner", false),
            ("/etc/hosts", true),
            ("/etc/hosts.allow", false),
            ("/home/sandbox/.cache/pip/x", true),
            ("/home/sandbox/.config", false),
            ("/workspace/a/__pycache__/b.pyc", true),
            ("/workspace/.run-7k2m9x4b.py", true),
            ("/tmp/dockerfile-context.tar", true),
            ("/tmp/x", false),
        ] {
            assert_eq!(is_left_out(&path.parse().unwrap(), &home), expected, "{path}");
        }
    }
}
