//! What programs can do about the walls and about process 1, whose user they may be.

use engine_docker::{ContainerUser, DockerConfig, DockerEngine};
use sandbox::Engine;

use crate::Case;
use crate::world::{World, make, says, spec};

pub const CASES: &[Case] = &[
    ("walls::the_image_and_process_1s_program_cannot_be_changed", |world| Box::pin(read_only(world))),
    ("walls::process_1_and_its_token_are_out_of_reach", |world| Box::pin(process_1(world, ContainerUser::Sandbox))),
    ("walls::they_are_for_a_containers_root_too", |world| Box::pin(process_1(world, ContainerUser::Image))),
    ("walls::nothing_of_the_daemon_is_inside", |world| Box::pin(nothing_of_the_daemon(world))),
];

async fn read_only(world: World) {
    let config = DockerConfig { user: ContainerUser::Image, ..world.config() };
    let engine = DockerEngine::start(config).await.unwrap();
    let id = make(&engine, &spec()).await;
    let script = "for place in / /etc /usr /.sandpen; do touch $place/x 2> /dev/null && echo $place; done; \
                  mount -o remount,rw / 2> /dev/null && echo remounted; mknod /tmp/d c 1 5 2> /dev/null && echo device; \
                  echo done";
    assert_eq!(says(&engine, &id, script).await, "done\n");
    engine.destroy(&id).await.unwrap();
}

async fn process_1(world: World, user: ContainerUser) {
    let engine = DockerEngine::start(DockerConfig { user, ..world.config() }).await.unwrap();
    let id = make(&engine, &spec()).await;
    // Bridges and supervisors are seen as well, and are as closed.
    let script = "for process in /proc/[0-9]*; do \
                    [ \"$(cat $process/comm 2> /dev/null)\" = init ] || continue; \
                    cat $process/environ > /dev/null 2>&1 && echo environment of $process; \
                    head -c 1 $process/mem > /dev/null 2>&1 && echo memory of $process; \
                    readlink $process/fd/0 $process/fd/3 > /dev/null 2>&1 && echo descriptors of $process; \
                    ls $process/root/ > /dev/null 2>&1 && echo root of $process; \
                  done; grep -l SANDPEN /proc/*/environ 2> /dev/null; env | grep SANDPEN; echo done";
    assert_eq!(says(&engine, &id, script).await, "done\n");
    // The socket of process 1 has a name that everybody inside can connect to; what is said there without the token is
    // not heard, and the connection ends.
    let knock = "python3 -c 'import socket\n\
                 s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                 s.settimeout(5)\n\
                 try:\n    s.connect(\"\\0sandpen\"); s.send(b\"\\x02\"); print(s.recv(100))\n\
                 except ConnectionError: print(b\"\")'";
    assert_eq!(says(&engine, &id, knock).await, "b''\n");
    says(&engine, &id, "kill -9 1; kill -STOP 1").await;
    match user {
        ContainerUser::Sandbox => _ = says(&engine, &id, "kill -9 -1").await,
        // Its bridges are the same user's, and with the first of them ends the sandbox; nobody else's.
        ContainerUser::Image => {}
    }
    assert_eq!(says(&engine, &id, "echo alive").await, "alive\n");
    engine.destroy(&id).await.unwrap();
}

async fn nothing_of_the_daemon(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let script = "find / -xdev -type s 2> /dev/null; ls /var/run/docker.sock /run/podman 2> /dev/null; \
                  env | grep -i proxy; grep -v localhost /etc/hosts | grep -v ^ff | grep -c gateway; \
                  grep -h . /sys/class/net/*/address | sort -u";
    assert_eq!(says(&engine, &id, script).await, "0\n00:00:00:00:00:00\n");
    engine.destroy(&id).await.unwrap();
}
