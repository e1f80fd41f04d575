//! What a server costs its machine: the time that it and all that it started have had of the processors.

use std::time::Duration;

/// In Linux it is a hundredth of a second on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// So far, those included that have ended and were waited for. What the kernel does for them in threads of its own is not in it.
pub fn time(server: u32) -> Option<Duration> {
    let mut waiting = vec![server];
    let mut ticks = 0;
    while let Some(process) = waiting.pop() {
        // Whoever has just ended is counted by its parent the next time.
        ticks += std::fs::read_to_string(format!("/proc/{process}/stat")).ok().and_then(|stat| of(&stat)).unwrap_or(0);
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    (ticks > 0).then(|| TICK * ticks)
}

/// Its own time and that of its children, each in programs and in the kernel for them.
fn of(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    fields.get(11..15)?.iter().map(|field| field.parse::<u32>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_times_count_whatever_a_program_is_called() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 11 22 33 44 20 0 1 0 5 1000 10";
        assert_eq!(of(stat), Some(110));
        assert_eq!(of("7 (a) S 1"), None);
    }
}
