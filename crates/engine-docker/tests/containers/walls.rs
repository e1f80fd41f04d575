//! What programs can do about the walls and about process 1, whose user they may be.

use std::time::Duration;

use sandbox::{Engine, ErrorKind, ExecRequest, ExecStatus, Role, SandboxSpec};

use crate::Case;
use crate::world::{World, make, root_spec, says, spec};

pub const CASES: &[Case] = &[
    ("walls::the_image_and_process_1s_program_cannot_be_changed", |world| Box::pin(read_only(world))),
    ("walls::process_1_and_its_token_are_out_of_reach", |world| Box::pin(process_1(world, spec()))),
    ("walls::they_are_for_a_containers_root_too", |world| Box::pin(process_1(world, root_spec()))),
    ("walls::no_namespaces_can_be_made", |world| Box::pin(namespaces(world))),
    ("walls::nothing_of_the_daemon_is_inside", |world| Box::pin(nothing_of_the_daemon(world))),
    ("walls::names_that_the_daemons_host_knows_are_not_inside", |world| Box::pin(names_of_the_host(world))),
];

async fn read_only(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let script = "for place in / /etc /usr /.sandpen; do touch $place/x 2> /dev/null && echo $place; done; \
                  mount -o remount,rw / 2> /dev/null && echo remounted; mknod /tmp/d c 1 5 2> /dev/null && echo device; \
                  echo done";
    assert_eq!(says(&engine, &id, script).await, "done\n");
    engine.destroy(&id).await.unwrap();
    // To root the image is its own, and the rest is not.
    let id = make(&engine, &root_spec()).await;
    let script = script.replace("/ /etc /usr /.sandpen", "/.sandpen /proc /sys");
    let moves = "mv /.sandpen /x 2> /dev/null && echo moved; rm -rf /.sandpen 2> /dev/null && echo removed; \
                 [ -e /.sandpen/init ] && echo /.sandpen/init";
    assert_eq!(says(&engine, &id, &format!("{moves}; {script}")).await, "/.sandpen/init\ndone\n");
    engine.destroy(&id).await.unwrap();
}

async fn process_1(world: World, spec: SandboxSpec) {
    let engine = world.engine().await;
    let id = make(&engine, &spec).await;
    // Bridges and supervisors are seen as well, and are as closed.
    let script = "for process in /proc/[0-9]*; do \
                    [ \"$(cat $process/comm 2> /dev/null)\" = init ] || continue; \
                    cat $process/environ > /dev/null 2>&1 && echo environment of $process; \
                    head -c 1 $process/mem > /dev/null 2>&1 && echo memory of $process; \
                    readlink $process/fd/0 $process/fd/3 > /dev/null 2>&1 && echo descriptors of $process; \
                    find $process/root/ -maxdepth 1 > /dev/null 2>&1 && echo root of $process; \
                  done; env | grep SANDPEN; echo done";
    let said = says(&engine, &id, script).await;
    // gVisor keeps what it shows of a process from nobody; memory is what must not be there.
    let shown = |line: &&str| !world.is_gvisor() || line.starts_with("memory") || *line == "done";
    assert_eq!(said.lines().filter(shown).collect::<Vec<_>>(), ["done"], "{said}");
    let inspected = world.docker.inspect_container(&format!("sandpen-{id}"), None).await.unwrap();
    let token = inspected.config.unwrap().labels.unwrap().remove("org.sandpen.token").unwrap();
    // The first letter is a class of letters, so that the search does not find itself.
    let (first, rest) = token.split_at(1);
    let search =
        format!("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | grep -a -c '[{first}]{rest}'; true");
    assert_eq!(says(&engine, &id, &search).await, "0\n", "the token is inside");
    // The socket of process 1 has a name that everybody inside can connect to; what is said there without the token is
    // not heard, and the connection ends.
    let knock = "python3 -c 'import socket\n\
                 s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                 s.settimeout(5)\n\
                 try:\n    s.connect(\"\\0sandpen\"); s.send(b\"\\x02\"); print(s.recv(100))\n\
                 except ConnectionError: print(b\"\")'";
    assert_eq!(says(&engine, &id, knock).await, "b''\n");
    if world.is_gvisor() && spec.role != Role::Guest {
        // Who is root there can end process 1, and with it the own sandbox, which callers hear; here one who was told before
        // that it has started.
        let request = ExecRequest::shell("read go; kill -9 1; sleep 60", Duration::from_secs(90)).unwrap();
        let process = engine.start(&id, &request).await.unwrap();
        drop(process.stdin);
        let ended = process.control.wait().await.unwrap();
        assert_eq!(ended.status, ExecStatus::Killed);
        assert_eq!(engine.usage(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
        return;
    }
    says(&engine, &id, "kill -9 1; kill -STOP 1").await;
    // Bridges of a sandbox's root are the same user's, and with the first of them ends the sandbox; nobody else's.
    if spec.role == Role::Guest {
        says(&engine, &id, "kill -9 -1").await;
    }
    assert_eq!(says(&engine, &id, "echo alive").await, "alive\n");
    engine.destroy(&id).await.unwrap();
}

/// In a user namespace of its own a program has every capability, and what it may do with them is a matter of luck.
async fn namespaces(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    // By their numbers, because a library may know other ways; the flags are those of a user namespace. 1 is EPERM, 38 ENOSYS.
    let script = r#"unshare -U true 2> /dev/null && echo by its program
        cat > /tmp/calls.pl << 'END'
my $other = `uname -m` eq "aarch64\n";
my $user = 0x10000000;
for (['unshare', 272, 97, $user], ['clone', 56, 220, $user | 17, 0, 0, 0, 0], ['setns', 308, 268, -1, 0],
     ['mount', 165, 40, 0, 0, 0, 0, 0], ['fsopen', 430, 430, 0, 0], ['clone3', 435, 435, 0, 0],
     ['add_key', 248, 217, 0, 0, 0, 0, 0]) {
    my ($name, $first, $second, @arguments) = @$_;
    my $made = syscall($other ? $second : $first, @arguments);
    exit if $name eq 'clone' && $made == 0;
    print "$name ", $made == -1 ? $! + 0 : 'done', "\n";
}
END
        perl /tmp/calls.pl
        python3 -c 'import threading; threading.Thread(target=print, args=("thread",)).start()'"#;
    let expected = "unshare 1\nclone 1\nsetns 1\nmount 1\nfsopen 1\nclone3 38\nadd_key 1\nthread\n";
    assert_eq!(says(&engine, &id, script).await, expected);
    engine.destroy(&id).await.unwrap();
}

async fn nothing_of_the_daemon(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let script = "find / -xdev -type s 2> /dev/null; for place in /var/run/docker.sock /run/podman; do [ -e $place ] && echo $place; done; \
                  env | grep -i proxy; grep -v localhost /etc/hosts | grep -v ^ff | grep -c gateway; \
                  cat /sys/class/net/*/address 2> /dev/null | sort -u";
    // gVisor tells no addresses.
    let expected = if world.is_gvisor() { "0\n" } else { "0\n00:00:00:00:00:00\n" };
    assert_eq!(says(&engine, &id, script).await, expected);
    engine.destroy(&id).await.unwrap();
}

async fn names_of_the_host(world: World) {
    let own = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let engine = world.engine().await;
    for spec in [spec(), root_spec()] {
        let id = make(&engine, &spec).await;
        let inside = says(&engine, &id, "cat /etc/hosts").await;
        let strange: Vec<_> = names(&inside).filter(|name| !is_usual(name)).collect();
        assert_eq!(strange, [""; 0], "of {inside:?}, where the host has {own:?}");
        assert_eq!(says(&engine, &id, "getent hosts localhost | head -n 1 | wc -l").await, "1\n");
        engine.destroy(&id).await.unwrap();
    }
    // Where a container of somebody else's would know them, this can fail.
    let Some(known) = names(&own).find(|name| !is_usual(name)) else {
        println!("SKIPPED: the hosts file has no name for this machine: that one would be noticed inside is not shown");
        return;
    };
    let plain = world.printed_by_a_plain_container(&["cat", "/etc/hosts"]).await;
    assert_eq!(names(&plain).any(|name| name == known), world.is_podman(), "{known} in {plain:?}");
}

/// All names of a hosts file.
fn names(hosts: &str) -> impl Iterator<Item = &str> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split_whitespace().skip(1))
}

/// Names of the machine itself and of groups of machines, which are the same everywhere.
fn is_usual(name: &str) -> bool {
    ["localhost", "sandbox"].contains(&name) || name.starts_with("ip6-")
}
