//! What programs may not ask of the kernel in a sandbox that somebody else's daemon has built, whatever the daemon's own
//! filter says.
//!
//! A network namespace does not hold every family: `AF_VSOCK` leads out of a virtual machine to whoever runs it, past every
//! rule, and not every daemon refuses it. And Podman lets programs make user namespaces, in which they have every capability
//! and with that most of the kernel's mistakes before them. So this filter is added, for process 1 and all that it starts.
//!
//! The embedded engine's policy decides what is in it: its tests compare the two. For programs of this processor that policy
//! is a filter of its own, installed beside this one; it has no word for old programs, which daemons run and this filter holds.

use std::io;

use crate::syscall;

/// Local sockets, the internet's, and the routing interface that libraries list addresses with.
const ALLOWED: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The numbers of calls under one kind of program that the kernel runs.
struct Calls {
    /// `AUDIT_ARCH_*`.
    architecture: u32,
    /// Both take a family first.
    sockets: [u32; 2],
    /// One call for all of these, with the one that is meant first.
    multiplexed: Option<u32>,
    /// Takes what the child does not share first.
    clone: u32,
    /// Takes what is asked of a device second.
    ioctl: u32,
    /// Not permitted: `unshare`, `setns`, `mount`, `umount2`, `pivot_root`, `chroot`, `add_key`, `request_key`, `keyctl`, `bpf`,
    /// `perf_event_open`, `userfaultfd`, `name_to_handle_at`, `open_by_handle_at`, the oldest `umount`; and of old programs
    /// `ptrace`, `process_vm_readv`, `process_vm_writev`, `adjtimex`, `clock_adjtime` twice, `fanotify_init`, `fanotify_mark`,
    /// `modify_ldt`.
    refused: &'static [u32],
}

/// The same numbers everywhere: `open_tree`, `move_mount`, `fsopen`, `fsconfig`, `fsmount`, `fspick`, `mount_setattr`,
/// `open_tree_attr`, `io_uring_enter`, `io_uring_register`, `pidfd_getfd`.
const REFUSED: [u32; 11] = [428, 429, 430, 431, 432, 433, 442, 467, 426, 427, 438];

/// `TIOCSTI` and `TIOCLINUX`, which type into the terminal of whoever looks on, `TIOCCONS` and `TIOCSETD`.
const REQUESTS: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];

/// What a filter cannot look into, as from a kernel without them: `io_uring_setup`, which makes sockets, and `clone3`, instead
/// of which libraries then use `clone`.
const MISSING: [u32; 2] = [425, 435];

/// Every namespace that `clone` makes.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// A bit in every number of programs with short addresses.
const X32: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const KINDS: &[Calls] = &[
    Calls {
        architecture: 0xc000_003e,
        sockets: [41, 53],
        multiplexed: None,
        clone: 56,
        ioctl: 16,
        refused: &[272, 308, 165, 166, 155, 161, 248, 249, 250, 321, 298, 323, 303, 304],
    },
    Calls {
        architecture: 0x4000_0003,
        sockets: [359, 360],
        multiplexed: Some(102),
        clone: 120,
        ioctl: 54,
        refused: &[
            310, 346, 21, 52, 217, 61, 286, 287, 288, 357, 336, 374, 341, 342, 22, 26, 347, 348, 124, 343, 405, 338,
            339, 123,
        ],
    },
];

#[cfg(target_arch = "aarch64")]
const KINDS: &[Calls] = &[
    Calls {
        architecture: 0xc000_00b7,
        sockets: [198, 199],
        multiplexed: None,
        clone: 220,
        ioctl: 29,
        refused: &[97, 268, 40, 39, 41, 51, 217, 218, 219, 280, 241, 282, 264, 265],
    },
    Calls {
        architecture: 0x4000_0028,
        sockets: [281, 288],
        multiplexed: None,
        clone: 120,
        ioctl: 54,
        refused: &[
            337, 375, 21, 52, 218, 61, 309, 310, 311, 386, 364, 388, 370, 371, 26, 376, 377, 124, 372, 405, 367, 368,
        ],
    },
];

/// Cannot be taken back. Needs `no_new_privs`.
pub fn restrict() -> io::Result<()> {
    syscall::install_seccomp(&program())
}

/// An array of `struct sock_filter`.
pub fn program() -> Vec<u8> {
    let allow = libc::SECCOMP_RET_ALLOW;
    let refuse = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = Vec::new();
    for calls in KINDS {
        let mut part = vec![load(0), and(!X32)];
        part.extend(MISSING.iter().flat_map(|&call| when(call, vec![answer(refuse(libc::ENOSYS))])));
        let refused = REFUSED.iter().chain(calls.refused);
        part.extend(refused.flat_map(|&call| when(call, vec![answer(refuse(libc::EPERM))])));
        let mut namespaces = vec![load(16), and(NAMESPACES)];
        namespaces.extend(when(0, vec![answer(allow)]));
        namespaces.push(answer(refuse(libc::EPERM)));
        part.extend(when(calls.clone, namespaces));
        let mut requests = vec![load(24)];
        requests.extend(REQUESTS.iter().flat_map(|&request| when(request, vec![answer(refuse(libc::EPERM))])));
        requests.push(answer(allow));
        part.extend(when(calls.ioctl, requests));
        for socket in calls.sockets {
            let mut families = vec![load(16)];
            families.extend(ALLOWED.iter().flat_map(|&family| when(family as u32, vec![answer(allow)])));
            families.push(answer(refuse(libc::EAFNOSUPPORT)));
            part.extend(when(socket, families));
        }
        if let Some(multiplexed) = calls.multiplexed {
            // Its arguments are in memory, where a filter cannot look; the calls that it stands for are there too.
            const SOCKET: u32 = 1;
            const SOCKET_PAIR: u32 = 8;
            let mut meant = vec![load(16)];
            for call in [SOCKET, SOCKET_PAIR] {
                meant.extend(when(call, vec![answer(refuse(libc::ENOSYS))]));
            }
            meant.push(answer(allow));
            part.extend(when(multiplexed, meant));
        }
        part.push(answer(allow));
        filter.push(load(4));
        filter.extend(when(calls.architecture, part));
    }
    // Whatever else the kernel may run has numbers that are not known here.
    filter.push(answer(refuse(libc::ENOSYS)));
    filter.iter().flat_map(|instruction| instruction.bytes()).collect()
}

/// Asks whoever listens about `exit_group`, of programs of this processor, and lets everything pass.
pub fn asking_before_exit() -> Vec<u8> {
    let ask = vec![answer(libc::SECCOMP_RET_USER_NOTIF)];
    let mut native = vec![load(0)];
    native.extend(when(libc::SYS_exit_group as u32, ask));
    let mut filter = vec![load(4)];
    filter.extend(when(KINDS[0].architecture, native));
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter.iter().flat_map(|instruction| instruction.bytes()).collect()
}

/// `struct sock_filter`.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u32,
    when_false: u8,
    value: u32,
}

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let [c0, c1] = (self.code as u16).to_ne_bytes();
        let [v0, v1, v2, v3] = self.value.to_ne_bytes();
        [c0, c1, 0, self.when_false, v0, v1, v2, v3]
    }
}

/// A word of `struct seccomp_data`: the number is at 0, the architecture at 4, the low half of the first argument at 16, of the
/// second at 24.
fn load(offset: u32) -> Instruction {
    Instruction { code: libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, when_false: 0, value: offset }
}

fn and(mask: u32) -> Instruction {
    Instruction { code: libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, when_false: 0, value: mask }
}

fn answer(action: u32) -> Instruction {
    Instruction { code: libc::BPF_RET | libc::BPF_K, when_false: 0, value: action }
}

/// Do so when what was loaded last is this, and go on after it otherwise.
fn when(value: u32, then: Vec<Instruction>) -> Vec<Instruction> {
    let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let skip = Instruction { code, when_false: then.len() as u8, value };
    std::iter::once(skip).chain(then).collect()
}
