//! How often the sandbox's memory was used up, where it can see its own group.

/// Versions 2 and 1, as daemons mount them.
const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Processes that the kernel killed for it so far; `None` where that cannot be seen.
pub fn kills() -> Option<u64> {
    FILES.iter().find_map(|path| parse(&std::fs::read_to_string(path).ok()?))
}

fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_it_alike() {
        assert_eq!(parse("low 0\nhigh 0\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(parse("oom_kill_disable 0\n"), None);
    }
}
