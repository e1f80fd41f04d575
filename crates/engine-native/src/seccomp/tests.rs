use std::collections::BTreeSet;

use super::compile::{Instruction, compile, return_value};
use super::interpret::{Coverage, evaluate};
use super::policy::{Answer, Architecture, Condition, Policy, Rule};

const BOTH: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const I386: u32 = 0x4000_0003;
const X32_BIT: u32 = 0x4000_0000;
const SOCK_PACKET: i64 = 10;

struct Filter {
    policy: Policy,
    program: Vec<Instruction>,
    coverage: Coverage,
}

impl Filter {
    fn new(architecture: Architecture) -> Self {
        Self::of(Policy::built_in(architecture).unwrap())
    }

    fn of(policy: Policy) -> Self {
        let program = compile(&policy);
        Self { policy, program, coverage: Coverage::default() }
    }

    /// The filter's answer, which must be the policy's.
    fn check(&mut self, audit_code: u32, number: u32, arguments: [u64; 6]) -> Answer {
        let expected = self.policy.decide(audit_code, number, &arguments);
        let seen = evaluate(&self.program, audit_code, number, &arguments, &mut self.coverage);
        let name = self.policy.name(number);
        assert_eq!(seen, return_value(expected), "{name:?} ({number}) with {arguments:x?} on {audit_code:#x}");
        expected
    }

    fn native(&mut self, number: u32, arguments: [u64; 6]) -> Answer {
        self.check(self.policy.architecture().audit_code(), number, arguments)
    }

    fn named(&mut self, name: &str, arguments: [u64; 6]) -> Answer {
        let number = self.policy.number(name).unwrap_or_else(|| panic!("{name} has no number"));
        self.native(number, arguments)
    }
}

/// Arguments made of every value that the condition looks for, its neighbours, and the same with bits that must not
/// count.
fn interesting_arguments(condition: &Condition) -> Vec<[u64; 6]> {
    let mut all = vec![[0; 6]];
    for argument in 0..6 {
        let mut values = BTreeSet::new();
        for check in condition.clauses.iter().flatten().filter(|check| check.argument == argument) {
            let mask = check.mask().unwrap_or(u32::MAX);
            let mask_bits = (0..32).map(|bit| 1 << bit).filter(|bit| mask & bit != 0 && mask != u32::MAX);
            values.extend(mask_bits.map(u64::from));
            for value in check.values() {
                let near = [value, value.wrapping_add(1), value.wrapping_sub(1), value | !mask, 0, u32::MAX];
                values.extend(near.map(u64::from));
                values.insert(u64::from(value) | 1 << 32);
                values.insert(u64::from(value) | 1 << 63);
            }
        }
        if !values.is_empty() {
            all = all
                .iter()
                .flat_map(|arguments| {
                    values.iter().map(move |value| {
                        let mut arguments = *arguments;
                        arguments[usize::from(argument)] = *value;
                        arguments
                    })
                })
                .collect();
        }
    }
    all
}

#[test]
fn what_is_installed_was_compiled_from_the_policy() {
    let compiled: Vec<u8> = Filter::new(Architecture::NATIVE).program.iter().flat_map(|one| one.to_bytes()).collect();
    assert_eq!(super::program(), compiled);
}

#[test]
fn the_filter_says_what_the_policy_says_on_every_way_through_it() {
    for architecture in BOTH {
        let mut filter = Filter::new(architecture);
        for number in (0..=600).chain([u32::MAX, X32_BIT - 1, i32::MAX as u32]) {
            filter.native(number, [0; 6]);
            filter.native(number, [u64::MAX; 6]);
            assert_eq!(filter.check(I386, number, [0; 6]), Answer::NotImplemented);
            assert_eq!(filter.native(number | X32_BIT, [0; 6]), Answer::NotImplemented);
        }
        for other in BOTH.into_iter().filter(|other| *other != architecture) {
            assert_eq!(filter.check(other.audit_code(), 0, [0; 6]), Answer::NotImplemented);
        }
        for number in filter.policy.numbers().collect::<Vec<_>>() {
            let Rule::Depends(condition) = filter.policy.rule(number) else { continue };
            let arguments = interesting_arguments(condition);
            for (index, clause) in condition.clauses.iter().enumerate() {
                let alone = |arguments: &&[u64; 6]| clause.iter().all(|check| check.holds(arguments));
                assert!(arguments.iter().any(|some| alone(&some)), "clause {index} of {number} never holds");
            }
            let (then, otherwise) = (condition.then, condition.otherwise);
            let answers: BTreeSet<Answer> =
                arguments.into_iter().map(|arguments| filter.native(number, arguments)).collect();
            assert_eq!(answers, BTreeSet::from([then, otherwise]));
        }
        assert_eq!(filter.coverage.missing(&filter.program), []);
    }
}

/// A conditional jump reaches 255 instructions; the built-in policy needs no farther one, a longer policy does.
#[test]
fn a_filter_may_grow_beyond_what_a_conditional_jump_reaches() {
    let many: String = (100..700).map(|value| format!("\"value {value}\": {value}, ")).collect();
    let json = include_str!("../../seccomp/default.json").replacen("\"PER_LINUX\": 0", &(many + "\"PER_LINUX\": 0"), 1);
    let mut filter = Filter::of(Policy::parse(&json, Architecture::X86_64).unwrap());
    assert!(filter.program.len() > 700);
    for number in 0..=600 {
        filter.native(number, [0; 6]);
        filter.native(number, [u64::MAX; 6]);
    }
    for value in 0..=800 {
        let allowed = value == 0 || value == 8 || (100..700).contains(&value);
        let answer = filter.named("personality", [value, 0, 0, 0, 0, 0]);
        assert_eq!(answer, if allowed { Answer::Allow } else { Answer::NotPermitted }, "{value}");
    }
}

/// Every instruction is paid for again in every sandbox, when the filter is installed. A change here is a decision.
#[test]
fn the_size_of_the_filter_is_known() {
    let sizes = BOTH.map(|architecture| compile(&Policy::built_in(architecture).unwrap()).len());
    assert_eq!(sizes, [143, 130]);
}

#[test]
fn the_bytes_are_those_of_the_native_program() {
    let program = compile(&Policy::built_in(Architecture::NATIVE).unwrap());
    assert_eq!(super::program().len(), 8 * program.len());
    let first = &super::program()[..8];
    assert_eq!(first, [0x20, 0, 0, 0, 4, 0, 0, 0], "the architecture is loaded first");
}

/// Written by hand, so that an edit of the policy cannot take its own tests along.
#[test]
fn what_must_never_be_possible_is_refused() {
    let refused = "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig \
        fsmount fspick mount_setattr io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd \
        add_key request_key keyctl open_by_handle_at name_to_handle_at ptrace process_vm_readv process_vm_writev \
        pidfd_getfd kcmp init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct \
        quotactl quotactl_fd settimeofday clock_settime clock_adjtime adjtimex syslog vhangup";
    for architecture in BOTH {
        let mut filter = Filter::new(architecture);
        for name in refused.split_whitespace() {
            assert_eq!(filter.named(name, [0; 6]), Answer::NotPermitted, "{name}");
        }
        assert_eq!(filter.named("clone3", [0; 6]), Answer::NotImplemented);
    }
    let mut filter = Filter::new(Architecture::X86_64);
    for name in ["iopl", "ioperm", "modify_ldt"] {
        assert_eq!(filter.named(name, [0; 6]), Answer::NotPermitted, "{name}");
    }
}

#[test]
fn arguments_are_told_apart() {
    use Answer::{Allow, FamilyNotSupported, NotPermitted};
    let mut filter = Filter::new(Architecture::NATIVE);
    let mut expect = |name: &str, arguments: &[i64], answer: Answer| {
        let mut all = [0; 6];
        for (slot, argument) in all.iter_mut().zip(arguments) {
            *slot = *argument as u64;
        }
        assert_eq!(filter.named(name, all), answer, "{name} {arguments:x?}");
    };
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    expect("clone", &[thread.into()], Allow);
    expect("clone", &[libc::SIGCHLD.into()], Allow);
    for flag in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        expect("clone", &[i64::from(flag | libc::SIGCHLD)], NotPermitted);
        expect("clone", &[i64::from(flag | thread)], NotPermitted);
    }

    let stream = i64::from(libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    let datagram = i64::from(libc::SOCK_DGRAM | libc::SOCK_NONBLOCK);
    let raw = i64::from(libc::SOCK_RAW | libc::SOCK_CLOEXEC);
    expect("socket", &[libc::AF_UNIX.into(), libc::SOCK_SEQPACKET.into()], Allow);
    for family in [libc::AF_INET, libc::AF_INET6] {
        expect("socket", &[family.into(), stream, libc::IPPROTO_TCP.into()], Allow);
        expect("socket", &[family.into(), datagram, 0], Allow);
        expect("socket", &[family.into(), raw, libc::IPPROTO_ICMP.into()], FamilyNotSupported);
        expect("socket", &[family.into(), SOCK_PACKET, 0], FamilyNotSupported);
        expect("socket", &[family.into(), stream, libc::IPPROTO_SCTP.into()], FamilyNotSupported);
        expect("socket", &[family.into(), datagram, 115], FamilyNotSupported);
    }
    expect("socket", &[libc::AF_NETLINK.into(), raw, libc::NETLINK_ROUTE.into()], Allow);
    expect("socket", &[libc::AF_NETLINK.into(), raw, libc::NETLINK_NETFILTER.into()], FamilyNotSupported);
    expect("socketpair", &[libc::AF_UNIX.into(), stream], Allow);
    for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_TIPC, libc::AF_BLUETOOTH, libc::AF_XDP] {
        expect("socket", &[family.into(), stream], FamilyNotSupported);
        expect("socketpair", &[family.into(), stream], FamilyNotSupported);
    }

    expect("ioctl", &[0, libc::TIOCGWINSZ as i64], Allow);
    for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCCONS, 0x5423] {
        expect("ioctl", &[0, request as i64], NotPermitted);
        expect("ioctl", &[0, request as i64 | 1 << 40], NotPermitted);
    }
    for allowed in [0, 8, 0x20000, 0x20008, 0xffff_ffff] {
        expect("personality", &[allowed], Allow);
    }
    expect("personality", &[libc::ADDR_NO_RANDOMIZE.into()], NotPermitted);
    let mode = |kind: libc::mode_t| i64::from(kind | 0o644);
    expect("mknodat", &[0, 0, mode(libc::S_IFIFO)], Allow);
    expect("mknodat", &[0, 0, mode(libc::S_IFREG)], Allow);
    expect("mknodat", &[0, 0, mode(libc::S_IFCHR)], NotPermitted);
    expect("mknodat", &[0, 0, mode(libc::S_IFBLK)], NotPermitted);
}

/// Process 1 runs under the same filter as the programs that it starts.
#[test]
fn process_1_can_do_its_work() {
    let needed = "clone execve execveat wait4 waitid kill setresuid setresgid setgroups setuid setgid capget capset \
        prctl signalfd4 rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait ppoll epoll_create1 epoll_ctl \
        epoll_pwait recvmsg sendmsg accept4 listen getsockopt openat openat2 pidfd_open pidfd_send_signal pipe2 dup3 \
        close_range renameat2 fsync fdatasync getdents64 mkdirat unlinkat symlinkat linkat fchmod fchmodat ftruncate \
        utimensat lseek statfs statx prlimit64 setsid setpgid setrlimit timerfd_create timerfd_settime clock_gettime \
        set_tid_address set_robust_list mremap madvise mmap munmap mprotect brk read write close exit_group";
    for architecture in BOTH {
        let mut filter = Filter::new(architecture);
        for name in needed.split_whitespace() {
            assert_eq!(filter.named(name, [0; 6]), Answer::Allow, "{name}");
        }
        assert_eq!(filter.named("socketpair", [1, 1, 0, 0, 0, 0]), Answer::Allow);
        for request in [libc::TIOCSCTTY, libc::TIOCGPTPEER, libc::TIOCSWINSZ, libc::TIOCGPTN, libc::TIOCSPTLCK] {
            assert_eq!(filter.named("ioctl", [0, request, 0, 0, 0, 0]), Answer::Allow);
        }
    }
}

#[test]
fn mistakes_in_a_policy_are_found() {
    let built_in = include_str!("../../seccomp/default.json");
    let mistake = |from: &str, to: &str| {
        assert!(built_in.contains(from), "{from}");
        let error = Policy::parse(&built_in.replacen(from, to, 1), Architecture::X86_64).unwrap_err();
        error.to_string()
    };
    assert_eq!(mistake("\"getrandom\"", "\"getrandm\""), "there is no system call getrandm");
    assert_eq!(mistake("\"getrandom\"", "\"read\""), "read is named twice");
    assert_eq!(mistake("[\"getrandom\"]", "[]"), "nothing is said about getrandom");
    assert_eq!(mistake("Random numbers.", ""), "no reason is given for [\"getrandom\"]");
    assert!(mistake("\"argument\": 0", "\"argument\": 6").ends_with("an argument that no system call has"));
    assert!(mistake("{\"SOCK_STREAM\": 1}", "{\"SOCK_STREAM\": 17}").ends_with("a value that cannot be"));
    assert!(mistake("\"otherwise\": \"EPERM\"", "\"otherwise\": \"allow\"").ends_with("the same answer either way"));
    assert!(mistake("\"unknown\"", "\"unkown\"").contains("unknown field"));
}
