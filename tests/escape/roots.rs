//! Programs that are root of a sandbox which a daemon made, with seven rights over its files and processes: what they must not
//! reach with them. Root of a container is root of the daemon's host for the kernel, unless the daemon maps users.
//!
//! Each script says `breach` of whatever works. Its control is the same script as root of a container to which Docker's own client
//! leaves all rights and no filter; it only tries what is harmless when it works.

use std::time::Duration;

use async_trait::async_trait;
use sandbox::{ExecRequest, Insistence, Owner, Persistence, Role, SandboxSpec};
use sandpen_tests::Result;
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::daemon::{Flavour, Given};
use sandpen_tests::lab::{Lab, Sandbox, is_on_daemon};

pub const CHECKS: &[&dyn Check] = &[
    &Signals,
    &Script {
        about: About {
            id: "RT-02",
            tries: "as root of a daemon's sandbox: memory, environment, descriptors, root and program of process 1, supervisors and bridges; ptrace",
            stopped_by: "helpers that cannot be dumped; no SYS_PTRACE; seccomp",
        },
        script: PROCESSES,
    },
    &Script {
        about: About {
            id: "RT-03",
            tries: "as that root: mounts, namespaces of its own and of others, chroot, open by handle",
            stopped_by: "seven rights and no more; seccomp",
        },
        script: NAMESPACES,
    },
    &Script {
        about: About {
            id: "RT-04",
            tries: "as that root: makes devices and opens those of the host",
            stopped_by: "no MKNOD; the daemon's list of devices",
        },
        script: DEVICES,
    },
    &Script {
        about: About {
            id: "RT-05",
            tries: "as that root: writes kernel settings, control groups and /sys",
            stopped_by: "mounts that are read-only; masked paths",
        },
        script: SETTINGS,
    },
    &Script {
        about: About {
            id: "RT-06",
            tries: "as that root: raw and packet sockets, interfaces, routes and filters",
            stopped_by: "no NET_ADMIN and NET_RAW; seccomp for families",
        },
        script: NETWORK,
    },
    &Script {
        about: About {
            id: "RT-07",
            tries: "as that root: modules, bpf, reboot, swap, host name, accounting, log, ports, keys, clocks",
            stopped_by: "seven rights and no more; seccomp",
        },
        script: CALLS,
    },
    &Script {
        about: About {
            id: "RT-08",
            tries: "as that root: changes, removes, replaces and remounts the volume of process 1's program, and opens the program for writing",
            stopped_by: "a volume that is mounted read-only; no SYS_ADMIN",
        },
        script: PROGRAM,
    },
    &Gate,
    &Script {
        about: About {
            id: "RT-10",
            tries: "as that root: adds rights to its own, by sets, by files that carry them, by set-user-id programs and back from another user",
            stopped_by: "empty bounding set, locked bits, no new privileges",
        },
        script: RIGHTS,
    },
];

const PROCESSES: &str = r#"cat > /tmp/trace.pl << 'END'
# PTRACE_SEIZE asks for the same right as an attach, and stops nobody: one that was attached and not waited for may stay so.
my $trace = `uname -m` eq "aarch64\n" ? 117 : 101;
for my $pid (@ARGV) { syscall($trace, 0x4206, $pid + 0, 0, 0) == 0 and print "breach trace $pid\n" }
END
sleep 5 & own=$!
for process in /proc/[0-9]*; do
    pid=${process#/proc/}; name=$(cat $process/comm 2> /dev/null)
    [ $pid = 1 ] || [ "$name" = init ] || continue
    others="$others $pid"
    cat $process/environ > /dev/null 2>&1 && echo breach environ $pid
    (exec 3< $process/mem) 2> /dev/null && echo breach mem $pid
    (exec 3<> $process/mem) 2> /dev/null && echo breach write mem $pid
    cat $process/maps > /dev/null 2>&1 && [ -n "$(cat $process/maps)" ] && echo breach maps $pid
    for number in 0 1 2 3 4 5 6 7 8; do readlink $process/fd/$number > /dev/null 2>&1 && echo breach descriptor $number of $pid; done
    ls $process/root/ > /dev/null 2>&1 && echo breach root of $pid
    (exec 3< $process/exe) 2> /dev/null && echo breach program of $pid
    ls $process/map_files/ > /dev/null 2>&1 && echo breach files of $pid
    cat $process/stack > /dev/null 2>&1 && echo breach stack of $pid
    cat $process/syscall > /dev/null 2>&1 && echo breach call of $pid
done
perl /tmp/trace.pl $others; kill $own"#;

const NAMESPACES: &str = "mkdir -p /tmp/m; mount -t tmpfs none /tmp/m 2> /dev/null && echo breach mount
mount --bind /etc /tmp/m 2> /dev/null && echo breach bind; mount -o remount,rw /proc/sys 2> /dev/null && echo breach remount
mount -t proc proc /tmp/m 2> /dev/null && echo breach proc; umount -l /etc/hosts 2> /dev/null && echo breach umount
for kind in --mount --user --net --pid --ipc --uts --cgroup; do unshare $kind true 2> /dev/null && echo breach unshare $kind; done
nsenter --target 1 --mount true 2> /dev/null && echo breach setns; chroot / true 2> /dev/null && echo breach chroot
perl -e 'my $h = pack(\"Ii\", 8, 1) . \"\\2\" . (\"\\0\" x 127); my $call = `uname -m` eq \"aarch64\\n\" ? 265 : 304;
    open my $root, \"<\", \"/etc/passwd\"; my $made = syscall($call, fileno($root), $h, 0); print \"breach handle\\n\" if $made >= 0 || $! != 1 && $! != 38'";

const DEVICES: &str = "for device in 'b 8 0' 'b 259 0' 'c 1 1' 'c 1 2' 'c 1 4' 'c 1 11' 'c 10 200' 'c 10 229' 'c 5 1'; do
    rm -f /tmp/d; mknod /tmp/d $device 2> /dev/null && echo breach mknod $device; (exec 3< /tmp/d) 2> /dev/null && echo breach open $device; done
for device in /dev/mem /dev/kmem /dev/port /dev/kmsg /dev/fuse /dev/kvm /dev/net/tun /dev/sda /dev/vda /dev/nvme0n1 /dev/loop-control /dev/cpu/0/msr; do
    (exec 3< $device) 2> /dev/null && echo breach open $device; done; true";

const SETTINGS: &str = "again() { [ -e $1 ] && value=$(cat $1 2> /dev/null) && echo \"$value\" 2> /dev/null > $1 && echo breach $1; }
for file in /proc/sys/kernel/core_pattern /proc/sys/kernel/printk /proc/sys/kernel/hostname /proc/sys/kernel/modprobe /proc/sys/vm/overcommit_memory \
    /proc/sys/fs/suid_dumpable /proc/sys/net/ipv4/ip_forward /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/uevent_helper \
    /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max \
    /sys/fs/cgroup/cgroup.subtree_control /sys/module/kernel/parameters/panic; do again $file 2> /dev/null; done
for file in /proc/sysrq-trigger /proc/irq/default_smp_affinity /sys/power/state /proc/sys/vm/drop_caches; do
    (exec 3>> $file) 2> /dev/null && echo breach open $file; done
[ -e /sys/fs/cgroup/cgroup.procs ] && mkdir /sys/fs/cgroup/own 2> /dev/null && echo breach group && rmdir /sys/fs/cgroup/own
mkdir /sys/fs/cgroup/pids/own 2> /dev/null && echo breach group && rmdir /sys/fs/cgroup/pids/own; true";

const NETWORK: &str = r#"python3 -c '
import socket, struct
socket.setdefaulttimeout(3)
def attempt(name, work):
    try:
        work()
        print("breach", name)
    except OSError:
        pass
for name, family, kind, protocol in [("packet", 17, 3, 0), ("raw", 2, 3, 1), ("raw of 6", 10, 3, 58), ("vsock", 40, 1, 0), ("audit", 16, 3, 9),
                                     ("netfilter", 16, 3, 12)]:
    if name in ("audit", "netfilter"):
        def work(protocol=protocol):
            s = socket.socket(16, socket.SOCK_RAW, protocol); s.bind((0, 0))
            kind, flags = (1001, 5) if protocol == 9 else (0x0a00, 5)
            s.send(struct.pack("IHHII", 20, kind, flags, 1, 0) + b"\0\0\0\0")
            if struct.unpack("i", s.recv(4096)[16:20])[0] in (-1, -111, -13): raise OSError("refused")
        attempt(name, work)
    else:
        attempt(name, lambda: socket.socket(family, kind, protocol))
def link():
    s = socket.socket(16, socket.SOCK_RAW, 0); s.bind((0, 0))
    body = struct.pack("BBHiII", 0, 0, 0, 1, 0x1, 0x1)
    s.send(struct.pack("IHHII", 16 + len(body), 16, 5, 1, 0) + body)
    if struct.unpack("i", s.recv(4096)[16:20])[0]: raise OSError("refused")
attempt("interface", link)
attempt("mark", lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1))
attempt("filter", lambda: socket.socket().getsockopt(socket.SOL_IP, 64, 84))
'"#;

/// What is permitted says that the arguments make no sense; the right is asked for first.
const CALLS: &str = r#"cat > /tmp/calls.pl << 'END'
my $other = `uname -m` eq "aarch64\n";
for (['init_module', 175, 105], ['finit_module', 313, 273, -1], ['delete_module', 176, 106], ['bpf', 321, 280, 99], ['reboot', 169, 142],
     ['swapon', 167, 224], ['swapoff', 168, 225], ['sethostname', 170, 161, 0, -1], ['setdomainname', 171, 162, 0, -1], ['acct', 163, 89, 1],
     ['syslog', 103, 116, 3, 0, -1], ['kexec_load', 246, 104, 0, 99, 0, 0], ['add_key', 248, 217], ['perf_event_open', 298, 241],
     ['quotactl', 179, 60], ['userfaultfd', 323, 282, 0], ['pivot_root', 155, 41], ['vhangup', 153, 58], ['lookup_dcookie', 212, 18],
     ['open_by_handle_at', 304, 265, -1], ['mount', 165, 40], ['fsopen', 430, 430], ['io_uring_setup', 425, 425], ['clock_adjtime', 305, 266, 0]) {
    my ($name, $first, $second, @arguments) = @$_;
    next if $name eq 'clock_adjtime';
    push @arguments, 0 while @arguments < 5;
    my $made = syscall($other ? $second : $first, @arguments);
    print "breach $name ", ($made == -1 ? $! + 0 : 'done'), "\n" unless $made == -1 && ($! == 1 || $! == 38);
}
END
perl /tmp/calls.pl"#;

const PROGRAM: &str = "mkdir -p /.sandpen; [ -e /.sandpen/init ] || { mkdir -p /.sandpen; cp /bin/true /.sandpen/init; }
(exec 3>> /.sandpen/init) 2> /dev/null && echo breach append; touch /.sandpen/x 2> /dev/null && echo breach new
chmod 777 /.sandpen/init 2> /dev/null && echo breach mode; chown 1:1 /.sandpen/init 2> /dev/null && echo breach owner
mv /.sandpen/init /.sandpen/y 2> /dev/null && echo breach name; rm -f /.sandpen/init 2> /dev/null && echo breach removal
mv /.sandpen /moved 2> /dev/null && echo breach directory; mount -o remount,rw /.sandpen 2> /dev/null && echo breach remount
ln -s /tmp /.sandpen/z 2> /dev/null && echo breach link; for exe in /proc/[0-9]*/exe; do
    [ \"$(cat ${exe%exe}comm 2> /dev/null)\" = init ] && (exec 3>> $exe) 2> /dev/null && echo breach $exe; done; true";

const RIGHTS: &str = r#"seven=00000000000000fb
more() { set=$(grep $1 /proc/self/status | cut -f2); [ $((0x$set & ~0x$seven)) = 0 ] || echo breach $1 $set $2; }
for set in CapPrm CapEff CapBnd CapAmb; do more $set at first; done
cp /bin/sh /tmp/own; chmod 6755 /tmp/own
cat > /tmp/rights.pl << 'END'
my $other = `uname -m` eq "aarch64\n";
my ($capset, $prctl) = $other ? (91, 167) : (126, 157);
my $all = "\xff\xff\xff\xff" x 3 . "\xff\x01\0\0" x 3;
print "breach capset\n" if syscall($capset, pack("Ii", 0x20080522, 0), $all) == 0;
for my $right (0 .. 40) { next if 0xfb >> $right & 1; print "breach ambient $right\n" if syscall($prctl, 47, 2, $right, 0, 0) == 0 }
print "breach bits\n" if syscall($prctl, 28, 0) == 0;
print "breach new privileges\n" if syscall($prctl, 39, 0, 0, 0, 0) == 0;
END
perl /tmp/rights.pl
setcap cap_sys_admin+ep /tmp/own 2> /dev/null && echo breach file
perl -e 'my ($call) = `uname -m` eq "aarch64\n" ? 5 : 188;
    print "breach attribute\n" if syscall($call, "/tmp/own", "security.capability", pack("IIIII", 0x02000001, 0x200000, 0, 0, 0), 20, 0) == 0'
setpriv --reuid=33 --regid=33 --clear-groups /tmp/own -p -c '[ $(id -u) = 0 ] && echo breach set-user-id
    setpriv --reuid=0 true 2> /dev/null && echo breach back'
true"#;

fn embedded_finding() -> Option<Finding> {
    let why = "root of the embedded engine is root of a user namespace; the whole table runs as it with SANDPEN_TEST_USER=image";
    (!is_on_daemon()).then(|| Finding::Skip(why.to_owned()))
}

fn root() -> SandboxSpec {
    SandboxSpec { role: Role::ImageUser(Insistence::Must), ..SandboxSpec::new(Owner::local()) }
}

async fn says(sandbox: &Sandbox, script: &str) -> Result<String> {
    Ok(sandbox.run(ExecRequest::shell(script, Duration::from_secs(60))?, "").await?.stdout)
}

fn judged(said: &str) -> Finding {
    let breaches: Vec<String> =
        said.lines().filter_map(|line| line.strip_prefix("breach ")).map(str::to_owned).collect();
    Finding::from_breaches(&breaches, "nothing works")
}

fn given() -> Result<Given> {
    Given::of_environment()?.ok_or_else(|| "there is no daemon".into())
}

/// What the scripts would need.
const RIGHTS_OF_CONTROL: [&str; 11] = [
    "SYS_ADMIN",
    "SYS_PTRACE",
    "SYS_MODULE",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYSLOG",
    "MKNOD",
    "NET_ADMIN",
    "NET_RAW",
    "SETFCAP",
    "DAC_READ_SEARCH",
];

/// As root of a container without those walls, on the same image.
fn unwalled(script: &str) -> Result<String> {
    let daemon = given()?;
    let mut words = vec!["run", "--rm", "--user", "0:0", "--network", "none"];
    // Not all, of which this machine may lack some.
    words.extend(RIGHTS_OF_CONTROL.iter().flat_map(|right| ["--cap-add", right]));
    words.extend(["--security-opt", "seccomp=unconfined"]);
    words.extend(match daemon.flavour {
        Flavour::Docker => ["--security-opt", "systempaths=unconfined"],
        Flavour::Podman => ["--security-opt", "unmask=ALL"],
    });
    words.extend([daemon.image.as_str(), "sh", "-c", script]);
    daemon.docker(&words)
}

struct Script {
    about: About,
    script: &'static str,
}

#[async_trait]
impl Check for Script {
    fn about(&self) -> About {
        self.about
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        if let Some(skipped) = embedded_finding() {
            return Ok(skipped);
        }
        let sandbox = lab.bare_sandbox_of(root()).await?;
        let said = says(&sandbox, &format!("{}\necho over", self.script)).await?;
        if !said.ends_with("over\n") || says(&sandbox, "id -u").await? != "0\n" {
            return Err(format!("the script does not come to its end: {said}").into());
        }
        sandbox.end().await?;
        Ok(judged(&said))
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        Ok(judged(&unwalled(self.script)?))
    }
}

/// Signals to process 1, one after the other, of which one is what a daemon stops a sandbox by.
struct Signals;

const ALL_SIGNALS: &str = "for number in $(seq 1 64); do kill -$number 1 2> /dev/null; done; sleep 1; echo alive";

#[async_trait]
impl Check for Signals {
    fn about(&self) -> About {
        About {
            id: "RT-01",
            tries: "as root of a daemon's sandbox that can be stopped: sends every signal to process 1, the daemon's own word for a stop too",
            stopped_by: "the kernel's protection of process 1; a stop counts when its sender is outside",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        if let Some(skipped) = embedded_finding() {
            return Ok(skipped);
        }
        let sandbox = lab.bare_sandbox_of(SandboxSpec { persistence: Persistence::Persistent, ..root() }).await?;
        let said = says(&sandbox, &format!("cat /proc/sys/kernel/random/boot_id > /run/mark; {ALL_SIGNALS}")).await;
        // What is in memory would be gone if it had been started again.
        let after = says(&sandbox, "cat /run/mark > /dev/null && echo alive").await;
        sandbox.end().await?;
        Ok(match (said.as_deref(), after.as_deref()) {
            (Ok("alive\n"), Ok("alive\n")) => Finding::Holds("it is there after 64 signals".to_owned()),
            (said, after) => Finding::Breach(format!("it answers {said:?}, then {after:?}")),
        })
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        // Where process 1 takes the daemon's word from everybody.
        let script = format!(
            "trap 'echo breach it has ended; exit 0' HUP INT QUIT TERM; ({ALL_SIGNALS}) & while :; do sleep 0.1; done"
        );
        Ok(judged(&unwalled(&script)?))
    }
}

/// The socket of process 1, which everybody inside can connect to and which lets in who knows the token.
struct Gate;

const KNOCK: &str = r#"python3 -c '
import socket, sys
def knock(message):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5)
    try:
        s.connect("\0sandpen")
        s.send(message)
        return s.recv(100)
    except OSError:
        return b""
held = []
for number in range(64):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect("\0sandpen")
    held.append(s)
def present(kind, token):
    return bytes([kind, len(token)]) + token
for kind in range(16):
    for token in [b"", b"token", open("/proc/1/cmdline", "rb").read().split(b"\0")[9], sys.argv[1].encode()]:
        for message in (present(kind, token), bytes([kind]), bytes([kind, 0, 0, 0])):
            if knock(message):
                print("breach answered", kind)
' "#;

#[async_trait]
impl Check for Gate {
    fn about(&self) -> About {
        About {
            id: "RT-09",
            tries: "as root of a daemon's sandbox: speaks to process 1's socket without the token, with its digest, in every kind of message, and holds it full",
            stopped_by: "a token of which only the digest is inside; those who wait make room",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        if let Some(skipped) = embedded_finding() {
            return Ok(skipped);
        }
        let sandbox = lab.bare_sandbox_of(root()).await?;
        let said = says(&sandbox, &format!("{KNOCK} guess; echo over")).await?;
        let after = says(&sandbox, "echo alive").await?;
        sandbox.end().await?;
        if !said.ends_with("over\n") || after != "alive\n" {
            return Ok(Finding::Breach(format!("it is disturbed: {said} {after}")));
        }
        Ok(judged(&said))
    }

    /// The same with the token, as it stands in the labels.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.bare_sandbox_of(root()).await?;
        let container = format!("sandpen-{}", sandbox.id);
        let format = "{{index .Config.Labels \"org.sandpen.token\"}}";
        let token = given()?.docker(&["inspect", "--format", format, &container])?;
        let said = says(&sandbox, &format!("{KNOCK} {}", token.trim())).await?;
        sandbox.end().await?;
        Ok(judged(&said))
    }
}
