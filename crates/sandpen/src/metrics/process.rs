//! What the kernel says of this process, under the names that everybody uses. Where it says nothing, nothing is written.

use std::fs;

use super::family::{counter, gauge};

pub fn write(page: &mut String) {
    if let Some(bytes) = resident() {
        gauge(page, "process_resident_memory_bytes", "Memory of the server itself.", &[], bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        let open = open.count().saturating_sub(1) as f64;
        gauge(page, "process_open_fds", "Open descriptors.", &[], open);
    }
    if let Some(most) = limit() {
        gauge(page, "process_max_fds", "Descriptors that may be open.", &[], most);
    }
    if let Some(seconds) = processor_seconds() {
        counter(page, "process_cpu_seconds_total", "Time on processors, of the server itself.", seconds);
    }
}

fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    kibibytes.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok().map(|count| count * 1024.0)
}

fn limit() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

fn processor_seconds() -> Option<f64> {
    // Nanoseconds on processors come first; threads are counted each for itself.
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    Some(nanoseconds.sum::<f64>() / 1e9)
}
