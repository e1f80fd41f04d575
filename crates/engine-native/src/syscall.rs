//! System calls that no safe crate offers, each behind the smallest safe wrapper.
//!
//! The only unsafe code of the workspace. The engine and process 1 of every sandbox share this file, so each of the two
//! programs leaves a part of it unused.
#![allow(unsafe_code, reason = "this is the one place where it may stand")]
#![allow(dead_code, reason = "two programs share this file and each uses its part")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which side of a fork we are on.
#[derive(Debug)]
pub enum Forked {
    Child,
    Parent(i32),
}

/// A copy of this process.
///
/// Callers are single-threaded programs (the launcher and init); in a threaded one the child could inherit a lock that
/// nobody will ever release.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: fork takes no pointers; the child of a single-threaded process may go on as its parent could.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(if pid == 0 { Forked::Child } else { Forked::Parent(pid as i32) })
}

/// Run `work` in a child that borrows our memory, and go on when it has become another program or has ended.
///
/// What a shell or `posix_spawn` does: nothing is copied, so it costs a fraction of a fork. What `work` changes in memory
/// stays changed; what it changes in its process (user, directory, signals) does not touch ours.
pub fn run_in_borrowed_memory(work: &mut dyn FnMut()) -> io::Result<i32> {
    extern "C" fn enter(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller below passes a pointer to its own `work`, and is suspended while we use it.
        let work = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
        work();
        127
    }
    const STACK_BYTES: usize = 256 << 10;
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
    let mut work = work;
    // SAFETY: the child runs on a stack of its own, which is aligned as the type of its elements and outlives it, because
    // with CLONE_VFORK we sleep until it has ended or is another program. So there is one user of our memory at a time,
    // as in a single-threaded program, which the callers are.
    let pid = check(
        unsafe {
            libc::clone(
                enter,
                stack.as_mut_ptr().byte_add(STACK_BYTES).cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                ptr::from_mut(&mut work).cast(),
            )
        }
        .into(),
    )?;
    Ok(pid as i32)
}

/// Which side of [`clone_into_namespaces`] we are on.
#[derive(Debug)]
pub enum Cloned {
    Child,
    Parent { pid: i32, descriptor: OwnedFd },
}

/// The constant of that name in `libc` does not fit its own type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A copy of this process in new namespaces, and on cgroup v2 already inside its cgroup.
pub fn clone_into_namespaces(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut descriptor: RawFd = -1;
    // SAFETY: all-zero is the documented default of clone_args.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = namespaces | libc::CLONE_PIDFD as u64;
    arguments.pidfd = ptr::from_mut(&mut descriptor) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of the memory and goes on after this call like a forked one;
    // `arguments` and `descriptor` outlive the call, and the caller is single-threaded.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, ptr::from_ref(&arguments), size_of::<libc::clone_args>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel stored a new descriptor there, which nobody else owns.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(Cloned::Parent { pid: pid as i32, descriptor })
}

/// A user namespace of our own, in which no id is mapped yet. Fails in a program with threads.
pub fn unshare_user_namespace() -> io::Result<()> {
    // SAFETY: takes no pointers, and this namespace does not change how descriptors or memory behave.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()).map(drop)
}

pub fn unshare_cgroup_namespace() -> io::Result<()> {
    // SAFETY: takes no pointers, and this namespace does not change how descriptors or memory behave.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into()).map(drop)
}

/// Properties of a mount that can only be tightened here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountAttributes {
    pub read_only: bool,
    pub no_devices: bool,
    pub no_exec: bool,
}

/// Set attributes on a mount and everything mounted below it; set-id bits never count.
pub fn restrict_mount(mount: BorrowedFd<'_>, attributes: MountAttributes) -> io::Result<()> {
    let mut set = libc::MOUNT_ATTR_NOSUID;
    if attributes.read_only {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if attributes.no_devices {
        set |= libc::MOUNT_ATTR_NODEV;
    }
    if attributes.no_exec {
        set |= libc::MOUNT_ATTR_NOEXEC;
    }
    let attr = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the path is a valid C string and `attr` is a mount_attr of the stated size; both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            ptr::from_ref(&attr),
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Have the files of a mount that is not attached yet belong, seen through it, to those ids outside of a user namespace that
/// their owners' numbers are inside of it. Needs privilege over the file system.
pub fn map_owners(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    // SAFETY: the path is a valid C string and `attr` is a mount_attr of the stated size; both outlive the call, and both
    // descriptors are borrowed for its time.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            ptr::from_ref(&attr),
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Install a filter: `program` is an array of `struct sock_filter` in native byte order.
///
/// Needs no-new-privileges, and cannot be undone.
pub fn install_seccomp(program: &[u8]) -> io::Result<()> {
    add_seccomp(program, 0).map(drop)
}

/// The same for one that asks: whoever has what comes back hears the calls that it asks about, and lets them go on.
pub fn install_seccomp_listener(program: &[u8]) -> io::Result<OwnedFd> {
    let listener = add_seccomp(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: with this flag the call returns a new descriptor, which is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
}

fn add_seccomp(program: &[u8], flags: libc::c_ulong) -> io::Result<i64> {
    if program.is_empty() || !program.len().is_multiple_of(size_of::<libc::sock_filter>()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let filter: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    // SAFETY: `program` points at `length` instructions that outlive the call; the kernel copies and checks them.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, ptr::from_ref(&program)) })
}

/// A call that waits until whoever listens lets it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    id: u64,
    /// The thread that calls, as this process numbers it.
    pub thread: i32,
    pub first_argument: u64,
}

/// To be called when there is something to hear. Fails when whoever called is gone meanwhile.
pub fn hear_notice(listener: BorrowedFd<'_>) -> io::Result<Notice> {
    // SAFETY: all-zero is what the kernel asks for, which fills the structure; that outlives the call and is plain numbers.
    let notice = unsafe {
        let mut notice: libc::seccomp_notif = std::mem::zeroed();
        check(
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, ptr::from_mut(&mut notice)).into(),
        )?;
        notice
    };
    Ok(Notice { id: notice.id, thread: notice.pid as i32, first_argument: notice.data.args[0] })
}

/// Have a call done as if nobody had asked.
pub fn let_go_on(listener: BorrowedFd<'_>, notice: Notice) -> io::Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id: notice.id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads the structure, which outlives the call.
    check(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, ptr::from_mut(&mut answer)).into()
    })
    .map(drop)
}

/// Whether this kernel filters system calls, and may answer for them with an error.
pub fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one number behind the pointer, which outlives the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, ptr::from_ref(&action)) })
        .is_ok()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Become the program behind a descriptor, with an empty environment. Returns only on failure.
pub fn exec_descriptor(program: BorrowedFd<'_>, argv: &[CString]) -> io::Error {
    let argv = pointers(argv);
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Become the program at `path`. Returns only on failure.
pub fn exec(path: &CStr, argv: &[CString], environment: &[CString]) -> io::Error {
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// End this process at once, running no destructors and no exit handlers of a forked parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Close every descriptor from `first` on, except those kept.
pub fn close_all_but(first: RawFd, keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut from = first;
    for &number in keep.iter().filter(|&&number| number >= first) {
        if number > from {
            close_between(from, number - 1);
        }
        from = number + 1;
    }
    close_between(from, RawFd::MAX);
}

fn close_between(first: RawFd, last: RawFd) {
    // SAFETY: callers are programs that are about to exec or that own nothing in the range; a number that is not open is
    // skipped. Nothing can be done about an error, and the only one is a wrong range.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Every descriptor from `first` on is closed by the next exec.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: changes only a flag of descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Put a descriptor at a fixed number, where the next program expects it.
pub fn place_descriptor(descriptor: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: callers are about to exec; what was open at `number` is theirs to lose.
    unsafe {
        if descriptor.as_raw_fd() == number {
            check(libc::fcntl(number, libc::F_SETFD, 0).into()).map(drop)
        } else {
            check(libc::dup2(descriptor.as_raw_fd(), number).into()).map(drop)
        }
    }
}

/// The descriptor that our parent left open at `number`, or nothing. To be called once for each number, at start.
pub fn inherited_descriptor(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: asking for flags of a number that may not be open is harmless; an open one that our parent placed for us
    // has no other owner in this fresh process.
    unsafe { (libc::fcntl(number, libc::F_GETFD) >= 0).then(|| OwnedFd::from_raw_fd(number)) }
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set before anything reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Block the signals and get a descriptor that becomes readable when one of them is pending.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialised and outlives both calls; the new descriptor has no other owner.
    unsafe {
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()).into())?;
        let descriptor = check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(descriptor as RawFd))
    }
}

/// No signal blocked, none ignored: how every program expects to be started.
pub fn reset_signals() {
    let none = signal_set(&[]);
    // SAFETY: `none` is initialised; SIG_DFL is valid for each number, and those that refuse it have it already.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Ignore a signal from now on.
pub fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// A child that has ended and was collected.
#[derive(Clone, Copy, Debug)]
pub struct Reaped {
    pub pid: i32,
    /// As `wait` tells it.
    pub status: i32,
}

/// Collect one ended child without waiting. `Ok(None)`: there are children, none has ended.
pub fn reap_any() -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = check(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) }.into())?;
    Ok((pid > 0).then_some(Reaped { pid: pid as i32, status }))
}

/// Wait for one child to end.
pub fn reap(pid: i32) -> io::Result<Reaped> {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        match check(unsafe { libc::waitpid(pid, &mut status, 0) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(Reaped { pid, status }),
        }
    }
}

/// Wait for one child to end, and end it when somebody has stopped it.
pub fn reap_unstopped(pid: i32) -> io::Result<Reaped> {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        match check(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            // SAFETY: takes numbers; the process is our child and was not collected, so its number is nobody else's.
            Ok(_) if libc::WIFSTOPPED(status) => drop(check(unsafe { libc::kill(pid, libc::SIGKILL) }.into())),
            Ok(_) => return Ok(Reaped { pid, status }),
        }
    }
}

/// Kill every process that we may signal, but for ourselves and process 1.
pub fn kill_everybody_else() {
    // SAFETY: takes numbers; that nobody is left to signal is no error here.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub peak_memory: u64,
}

impl Usage {
    /// Of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, peak_memory: self.peak_memory.max(other.peak_memory) }
    }
}

/// What all collected children used.
pub fn children_usage() -> Usage {
    // SAFETY: the kernel fills the structure, which is plain numbers.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Usage { cpu: duration(usage.ru_utime) + duration(usage.ru_stime), peak_memory: usage.ru_maxrss as u64 * 1024 }
}

/// What one process that runs has used of processors so far, with all of its threads.
pub fn process_cpu(pid: i32) -> Option<Duration> {
    // SAFETY: both calls fill what they are given, which is plain numbers.
    let time = unsafe {
        let mut clock: libc::clockid_t = 0;
        let mut time: libc::timespec = std::mem::zeroed();
        let found = libc::clock_getcpuclockid(pid, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0;
        found.then_some(time)?
    };
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Bring up the loopback interface of this network namespace.
pub fn raise_loopback(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero is a valid ifreq; the name is shorter than the field, so it stays NUL-terminated.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request).into()).map(drop)
    }
}

/// Let a socket take connections to addresses that are not the host's. Works for both families.
pub fn set_transparent(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one number of the stated size behind the pointer, which outlives the call.
    check(
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_IP,
                libc::IP_TRANSPARENT,
                ptr::from_ref(&on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        }
        .into(),
    )
    .map(drop)
}

/// Of several sockets that share an address, let the one that came first have everything, and the next when it is gone.
///
/// To be called for each of them, when it is bound and listens.
pub fn first_takes_all(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut program = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: `program` points at one instruction, which outlives the call; the kernel copies and checks it.
    check(
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                ptr::from_ref(&program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        }
        .into(),
    )
    .map(drop)
}

/// Have the kernel end this process after so many seconds, whatever it hangs in.
pub fn end_after(seconds: u32) {
    // SAFETY: takes a number and returns one; the signal that it leads to has its default action.
    unsafe { libc::alarm(seconds) };
}

/// The version of Landlock that this kernel offers, 0 when it has none or has it switched off.
pub fn landlock_version() -> u32 {
    const VERSION_QUERY: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads nothing behind the pointer and returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<libc::c_void>(), 0, VERSION_QUERY) };
    u32::try_from(version).unwrap_or(0)
}

/// Have the runtime watch a descriptor.
#[cfg(server_side)]
pub fn watch(descriptor: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps its descriptor open, and the same, until it is dropped with the value that is returned.
    unsafe { Ok(tokio::io::unix::AsyncFd::register(descriptor)?) }
}

/// Have the runtime watch a descriptor that is only ever read.
#[cfg(server_side)]
pub fn watch_readable(descriptor: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: as in `watch`.
    unsafe { Ok(tokio::io::unix::AsyncFd::register_with_interest(descriptor, tokio::io::Interest::READABLE)?) }
}

/// Take what has come on a socket, without waiting, into memory that need not have been written to before.
#[cfg(server_side)]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut tokio::io::ReadBuf<'_>) -> rustix::io::Result<()> {
    // SAFETY: nothing that was initialised is made uninitialised, because the memory is only handed to the kernel.
    let unfilled = unsafe { buffer.unfilled_mut() };
    let ((received, _), _) = rustix::net::recv(socket, unfilled, rustix::net::RecvFlags::DONTWAIT)?;
    let count = received.len();
    // SAFETY: the kernel has written so many bytes from the start of what was not filled.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Ok(())
}
