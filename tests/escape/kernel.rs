//! The kernel's surface: system calls against the policy, and files that tell about the host.

use std::fmt::Write;

use async_trait::async_trait;
use engine_native::seccomp::{Answer, Check as ArgumentCheck, Rule, policy};
use sandbox::Layer;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, is_on_daemon};
use sandpen_tests::probe::Findings;

pub const CHECKS: &[&dyn Check] = &[&AllNumbers, &NamedCalls, &GeneratedFromPolicy, &KernelFiles, &OldVersions];

/// One call for the probe to make, and what the policy answers.
struct Call {
    label: String,
    door: Door,
    number: u32,
    arguments: [u64; 6],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Native,
    /// x86-64 only: the same kernel entry with other pointers.
    X32,
    /// x86-64 only: the entry of 32-bit programs.
    I386,
}

const X32_BIT: u32 = 0x4000_0000;
const AUDIT_I386: u32 = 0x4000_0003;
const INVALID: [u64; 6] = [u64::MAX; 6];

impl Call {
    fn expected(&self) -> Answer {
        let policy = policy();
        match self.door {
            Door::Native => policy.decide(policy.architecture().audit_code(), self.number, &self.arguments),
            Door::X32 => policy.decide(policy.architecture().audit_code(), self.number | X32_BIT, &self.arguments),
            Door::I386 => policy.decide(AUDIT_I386, self.number, &self.arguments),
        }
    }

    fn line(&self) -> String {
        let door = match self.door {
            Door::Native => "native",
            Door::X32 => "x32",
            Door::I386 => "i386",
        };
        let mut line = format!("{} {door} {}", self.label, self.number);
        for argument in self.arguments {
            write!(line, " {}", argument as i64).expect("a string takes all");
        }
        line + "\n"
    }

    fn judge(&self, findings: &Findings) -> Option<String> {
        let found = findings.get(&self.label).unwrap_or("no answer");
        let right = match self.expected() {
            // The kernel's own answer; a call that is allowed may still be refused by it.
            Answer::Allow => found != "no answer",
            // A daemon's filter has answers of its own, and the kernel's to a program without capabilities is as good.
            Answer::NotPermitted | Answer::NotImplemented if is_on_daemon() => ["EPERM", "ENOSYS"].contains(&found),
            Answer::NotPermitted => found == "EPERM",
            Answer::NotImplemented => found == "ENOSYS" || (self.door == Door::I386 && found == "signal 11"),
            Answer::FamilyNotSupported => found == "EAFNOSUPPORT",
        };
        (!right).then(|| format!("{} answers {found}, the policy says {:?}", self.label, self.expected()))
    }
}

async fn make(lab: &Lab, calls: &[Call]) -> Result<Vec<String>> {
    let sandbox = lab.sandbox().await?;
    let input: String = calls.iter().map(Call::line).collect();
    let ran = sandbox.probe_with_input(&["calls"], &input).await?.complete()?;
    sandbox.end().await?;
    Ok(calls.iter().filter_map(|call| call.judge(&ran.findings)).collect())
}

/// Calls that end, stop or copy the caller, or make the whole machine write to its disks.
const LEFT_OUT: &[&str] = &[
    "exit",
    "exit_group",
    "fork",
    "vfork",
    "pause",
    "rt_sigreturn",
    "rt_sigsuspend",
    "sync",
    "restart_syscall",
    "sched_yield",
];

/// What no program of a container may ask for by the 32-bit door either: `ptrace` and its kin, modules, mounts, keys, handles,
/// namespaces, swap, clocks, ports…
const REFUSED_OF_I386: &[u32] = &[
    21, 22, 25, 26, 51, 52, 61, 74, 79, 87, 88, 101, 103, 110, 115, 124, 128, 129, 131, 217, 264, 283, 286, 287, 288,
    310, 336, 338, 341, 342, 343, 346, 347, 348, 350, 357, 374, 425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 438,
    442,
];

/// Calls every number with invalid arguments, by each door.
struct AllNumbers;

#[async_trait]
impl Check for AllNumbers {
    fn about(&self) -> About {
        About {
            id: "KS-01",
            tries: "all system call numbers up to 600, natively, as x32 and through the 32-bit door, with invalid arguments",
            stopped_by: "seccomp",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let doors: &[(Door, &str)] = if cfg!(target_arch = "x86_64") {
            &[(Door::Native, "native"), (Door::X32, "x32"), (Door::I386, "i386")]
        } else {
            &[(Door::Native, "native")]
        };
        let mut calls = Vec::new();
        for &(door, name) in doors {
            // A daemon lets old programs run, with a filter of theirs.
            let is_open = |number: &u32| door != Door::I386 || !is_on_daemon() || REFUSED_OF_I386.contains(number);
            for number in (0..=600).filter(is_open) {
                let known = policy().name(number);
                // The 32-bit numbers are others: 1 is exit there, 2 fork, 29 pause.
                let left_out = match door {
                    Door::Native | Door::X32 => known.is_some_and(|name| LEFT_OUT.contains(&name)),
                    Door::I386 => [1, 2, 29, 36, 72, 119, 173, 179, 190, 252].contains(&number),
                };
                if !left_out {
                    let label = format!("{name}-{number}-{}", known.filter(|_| door != Door::I386).unwrap_or("?"));
                    calls.push(Call { label, door, number, arguments: INVALID });
                }
            }
        }
        let breaches = make(lab, &calls).await?;
        Ok(Finding::from_breaches(&breaches, format!("{} calls as the policy says", calls.len())))
    }
}

/// Calls those that a sandbox has no use for, by name.
struct NamedCalls;

const NAMED: &[&str] = &[
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "add_key",
    "request_key",
    "keyctl",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "mount",
    "umount2",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "pivot_root",
    "chroot",
    "swapon",
    "swapoff",
    "reboot",
    "quotactl",
    "open_by_handle_at",
    "name_to_handle_at",
    "clock_settime",
    "settimeofday",
    "adjtimex",
    "clock_adjtime",
    "acct",
    "iopl",
    "ioperm",
    "unshare",
    "setns",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "syslog",
    "sethostname",
    "fanotify_init",
    "clone3",
];

#[async_trait]
impl Check for NamedCalls {
    fn about(&self) -> About {
        About {
            id: "KS-02",
            tries: "io_uring, bpf, perf, userfaultfd, keyrings, modules, mounts old and new, swap, reboot, clocks, port access…",
            stopped_by: "seccomp",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let of_this_machine = NAMED.iter().filter_map(|name| Some((*name, policy().number(name)?)));
        let calls: Vec<Call> = of_this_machine
            .map(|(name, number)| Call { label: name.to_owned(), door: Door::Native, number, arguments: INVALID })
            .collect();
        let mut breaches: Vec<String> = calls
            .iter()
            .filter(|call| call.expected() == Answer::Allow)
            .map(|call| format!("the policy allows {}", call.label))
            .collect();
        breaches.extend(make(lab, &calls).await?);
        Ok(Finding::from_breaches(&breaches, format!("{} calls refused", calls.len())))
    }
}

/// Calls every rule that looks at arguments, with arguments that match and that do not.
struct GeneratedFromPolicy;

impl GeneratedFromPolicy {
    fn calls() -> Vec<Call> {
        let mut calls = Vec::new();
        for number in policy().numbers() {
            let Rule::Depends(condition) = policy().rule(number) else { continue };
            let name = policy().name(number).unwrap_or("?");
            // Copies of the probe need a stack of their own if they get one; the others shall fail after the filter.
            let base = if name == "clone" { [0; 6] } else { INVALID };
            for (index, clause) in condition.clauses.iter().enumerate() {
                for check in clause {
                    for value in check.values() {
                        let arguments = with(with_all(base, clause), check, value);
                        calls.push(Self::call(name, number, index, "matching", arguments, calls.len()));
                    }
                    let arguments = with(with_all(base, clause), check, other_than(check));
                    calls.push(Self::call(name, number, index, "other", arguments, calls.len()));
                }
            }
        }
        calls
    }

    fn call(name: &str, number: u32, clause: usize, kind: &str, arguments: [u64; 6], serial: usize) -> Call {
        Call { label: format!("{name}-{clause}-{kind}-{serial}"), door: Door::Native, number, arguments }
    }
}

/// Arguments with which every check of a clause holds.
fn with_all(base: [u64; 6], clause: &[ArgumentCheck]) -> [u64; 6] {
    clause.iter().fold(base, |arguments, check| match check.values().next() {
        Some(value) => with(arguments, check, value),
        None => arguments,
    })
}

fn with(mut arguments: [u64; 6], check: &ArgumentCheck, value: u32) -> [u64; 6] {
    arguments[usize::from(check.argument)] = u64::from(value);
    arguments
}

/// A value that the check does not hold for, within its mask.
fn other_than(check: &ArgumentCheck) -> u32 {
    let mask = check.mask().unwrap_or(u32::MAX);
    let bits = (0..32).map(|bit| 1u32 << bit).chain([u32::MAX]);
    bits.map(|value| value & mask).find(|value| check.values().all(|known| known != *value)).unwrap_or(0)
}

#[async_trait]
impl Check for GeneratedFromPolicy {
    fn about(&self) -> About {
        About {
            id: "KS-04",
            tries: "every rule of the filter that looks at arguments, with arguments that match and that do not",
            stopped_by: "seccomp",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let calls = Self::calls();
        let refused = calls.iter().filter(|call| call.expected() != Answer::Allow).count();
        let breaches = make(lab, &calls).await?;
        let detail = format!("{} calls, {refused} of them refused", calls.len());
        Ok(Finding::from_breaches(&breaches, detail))
    }
}

/// Reads what tells about the host.
struct KernelFiles;

const FILES: &[&str] = &[
    "/proc/kallsyms",
    "/proc/kmsg",
    "/proc/kcore",
    "/proc/config.gz",
    "/proc/keys",
    "/proc/key-users",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/interrupts",
    "/proc/softirqs",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/modules",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/zoneinfo",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/partitions",
    "/proc/diskstats",
    "/proc/swaps",
    "/proc/cmdline",
    "/proc/latency_stats",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/bus",
    "/proc/irq",
    "/proc/driver",
    "/proc/asound",
    "/proc/pressure",
    "/proc/schedstat",
    "/sys/firmware",
    "/sys/kernel",
    "/sys/class/powercap",
    "/sys/class/thermal",
    "/sys/devices/virtual/powercap",
    "/sys/kernel/debug",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/kvm",
    "/dev/fuse",
    "/dev/disk",
    "/dev/vda",
    "/dev/sda",
];

#[async_trait]
impl Check for KernelFiles {
    fn about(&self) -> About {
        About {
            id: "KS-06",
            tries: "reads kernel symbols, log, configuration, memory image, keys, interrupts, power counters, devices",
            stopped_by: "masked paths",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::MaskedPaths])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let arguments: Vec<&str> = ["kernel-files"].iter().chain(FILES).copied().collect();
        let ran = sandbox.probe(&arguments).await?.complete()?;
        sandbox.end().await?;
        let tells = |answer: &str| !(answer.starts_with('E') || ["zeroed", "bytes 0", "directory 0"].contains(&answer));
        let mut breaches: Vec<String> = FILES
            .iter()
            .filter_map(|file| Some((file, ran.findings.get(file)?)))
            .filter(|(_, answer)| tells(answer))
            .map(|(file, answer)| format!("{file} gives {answer}"))
            .collect();
        if ran.findings.get("kernel log") == Some("ok") {
            breaches.push("the kernel's log can be read".to_owned());
        }
        Ok(Finding::from_breaches(&breaches, format!("{} files hidden", FILES.len())))
    }
}

/// Runtimes with known holes.
struct OldVersions;

#[async_trait]
impl Check for OldVersions {
    fn about(&self) -> About {
        About {
            id: "KS-07",
            tries: "runtimes and kernels below the versions in which known holes are closed",
            stopped_by: "a warning or refusal at start",
        }
    }

    fn controls(&self) -> Vec<Control> {
        Vec::new()
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        let why = if is_on_daemon() {
            "nothing is said about the version of a daemon's runtime: its operator keeps it up to date"
        } else {
            "the embedded engine runs no other runtime whose version could be too old"
        };
        Ok(Finding::Skip(why.to_owned()))
    }
}
