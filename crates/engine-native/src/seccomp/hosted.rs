//! The filter that process 1 adds where somebody else's daemon runs it, judged by the policy of this engine.

use super::compile::{Instruction, compile_with, return_value};
use super::interpret::{Coverage, evaluate};
use super::policy::{Answer, Architecture, Policy};

#[path = "../../init/src/filter.rs"]
#[allow(dead_code, reason = "it is installed by another program")]
mod filter;

/// The kind of old programs that the same kernel runs, and what the calls that make namespaces are there: `unshare`, `setns`,
/// `mount`, `umount2`, `pivot_root`, and `clone`.
const OLD: (u32, [u32; 5], u32) = match Architecture::NATIVE {
    Architecture::X86_64 => (0x4000_0003, [310, 346, 21, 52, 217], 120),
    Architecture::Aarch64 => (0x4000_0028, [337, 375, 21, 52, 218], 120),
};

/// Calls of old programs that reach into others: `ptrace`, `process_vm_readv`, `process_vm_writev`.
const TOUCHING: [u32; 3] = match Architecture::NATIVE {
    Architecture::X86_64 => [26, 347, 348],
    Architecture::Aarch64 => [26, 376, 377],
};

const X32: u32 = 0x4000_0000;

fn instructions() -> Vec<Instruction> {
    let read = |bytes: &[u8]| Instruction {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jump_true: bytes[2],
        jump_false: bytes[3],
        operand: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    filter::program().chunks_exact(8).map(read).collect()
}

fn answer(audit_code: u32, number: u32, argument: i32) -> u32 {
    let arguments = [argument as u64, 0, 0, 0, 0, 0];
    evaluate(&instructions(), audit_code, number, &arguments, &mut Coverage::default())
}

/// What needs a capability anyway is left to the daemon.
#[test]
fn what_leads_out_of_namespaces_is_refused_as_by_the_embedded_engine() {
    let policy = Policy::built_in(Architecture::NATIVE).unwrap();
    let native = policy.architecture().audit_code();
    let refused = "unshare setns clone3 mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen \
        fsconfig fsmount fspick mount_setattr add_key request_key keyctl bpf perf_event_open userfaultfd \
        open_by_handle_at name_to_handle_at io_uring_enter io_uring_register pidfd_getfd";
    for name in refused.split_whitespace() {
        let number = policy.number(name).unwrap();
        let expected = policy.decide(native, number, &[0; 6]);
        assert_ne!(expected, Answer::Allow, "{name}");
        for number in [number, number | X32] {
            assert_eq!(answer(native, number, 0), return_value(expected), "{name} as {number:#x}");
        }
    }
    let (audit_code, numbers, _) = OLD;
    for number in numbers.into_iter().chain(TOUCHING).chain([438]) {
        assert_eq!(answer(audit_code, number, 0), return_value(Answer::NotPermitted), "{number} of old programs");
    }
    assert_eq!(answer(audit_code, 435, 0), return_value(Answer::NotImplemented));
}

#[test]
fn nothing_is_refused_that_the_embedded_engine_allows() {
    let policy = Policy::built_in(Architecture::NATIVE).unwrap();
    let native = policy.architecture().audit_code();
    for number in policy.numbers() {
        // Of a family that both know.
        let arguments = [libc::AF_UNIX as u64, 0, 0, 0, 0, 0];
        if policy.decide(native, number, &arguments) == Answer::Allow {
            let seen = answer(native, number, libc::AF_UNIX);
            assert_eq!(seen, return_value(Answer::Allow), "{:?}", policy.name(number));
        }
    }
}

#[test]
fn nobody_types_into_a_terminal() {
    let policy = Policy::built_in(Architecture::NATIVE).unwrap();
    let native = (policy.architecture().audit_code(), policy.number("ioctl").unwrap());
    for (audit_code, ioctl) in [native, (OLD.0, 54)] {
        let asked = |request: u64| {
            evaluate(&instructions(), audit_code, ioctl, &[0, request, 0, 0, 0, 0], &mut Coverage::default())
        };
        for request in [0x5412, 0x541c, 0x541d, 0x5423] {
            assert_eq!(asked(request), return_value(Answer::NotPermitted), "{request:#x}");
        }
        assert_eq!(asked(0x5413), return_value(Answer::Allow), "its size may be asked for");
    }
}

/// As process 1 carries it, and as the embedded engine has it.
#[test]
fn old_programs_are_left_to_the_filter_that_knows_them() {
    let policy = Policy::built_in(Architecture::NATIVE).unwrap();
    let filter = compile_with(&policy, Answer::Allow);
    let asked = |audit_code, number| evaluate(&filter, audit_code, number, &[0; 6], &mut Coverage::default());
    assert_eq!(asked(OLD.0, 21), return_value(Answer::Allow));
    for number in policy.numbers() {
        let native = policy.architecture().audit_code();
        assert_eq!(asked(native, number), return_value(policy.decide(native, number, &[0; 6])), "{number}");
    }
}

#[test]
fn children_and_threads_are_made_and_namespaces_are_not() {
    let policy = Policy::built_in(Architecture::NATIVE).unwrap();
    let native = (policy.architecture().audit_code(), policy.number("clone").unwrap());
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    for (audit_code, clone) in [native, (OLD.0, OLD.2)] {
        for flags in [thread, libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD] {
            assert_eq!(answer(audit_code, clone, flags), return_value(Answer::Allow), "{flags:#x}");
        }
        for namespace in [
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWNS,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWCGROUP,
        ] {
            let flags = namespace | libc::SIGCHLD;
            assert_eq!(answer(audit_code, clone, flags), return_value(Answer::NotPermitted), "{flags:#x}");
        }
    }
}
