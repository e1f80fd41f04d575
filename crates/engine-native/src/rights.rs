//! Rights of programs that are root of their sandbox, the same under every engine: process 1 is built with this file too.

use rustix::thread::CapabilitySet;

/// What programs of the sandbox's root keep, over the ids of the sandbox alone:
///
/// - `CHOWN`: packages give their files to users of their own.
/// - `DAC_OVERRIDE`: root of an image expects to read and change what belongs to those users.
/// - `FOWNER`: and to set the modes and times of it.
/// - `FSETID`: and that set-group-id of a directory or file outlives that; no mount of a sandbox heeds it.
/// - `SETUID`, `SETGID`: downloads, tests and services are run as those users.
/// - `KILL`: and ended.
///
/// Nothing that reaches beyond files and processes: no `SETFCAP` (a right that a file carries would be carried out with the
/// image), no `MKNOD`, `SYS_CHROOT`, `SETPCAP`, `SYS_*` or `NET_*`.
pub const ROOT: [CapabilitySet; 7] = [
    CapabilitySet::CHOWN,
    CapabilitySet::DAC_OVERRIDE,
    CapabilitySet::FOWNER,
    CapabilitySet::FSETID,
    CapabilitySet::SETUID,
    CapabilitySet::SETGID,
    CapabilitySet::KILL,
];
