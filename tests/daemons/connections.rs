//! Every way to a daemon that its own client has.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sandpen_tests::program::{Ran, run};
use sandpen_tests::{Result, images};

use crate::certificates::Encrypted;
use crate::scene::Scene;

const RUN: &[&str] = &["run", "bash", "--image", images::DEBIAN, "echo there"];

/// Addresses in the variables that the daemon's own client reads.
pub(crate) fn by_variable(scene: &mut Scene) -> Result<()> {
    let variable = match scene.daemon.flavour() {
        sandpen_tests::daemon::Flavour::Docker => "DOCKER_HOST",
        sandpen_tests::daemon::Flavour::Podman => "CONTAINER_HOST",
    };
    works(&away(scene, &[(variable, scene.daemon.host().as_str())], RUN)?)?;
    let plain = forwarded(&scene.daemon.socket())?;
    works(&away(scene, &[(variable, format!("tcp://{plain}").as_str())], RUN)?)
}

/// The usual place of a daemon that is the user's own.
pub(crate) fn at_the_users_place(scene: &mut Scene) -> Result<()> {
    let runtime = scene.path().join("runtime");
    let place = match scene.daemon.flavour() {
        sandpen_tests::daemon::Flavour::Docker => runtime.join("docker.sock"),
        sandpen_tests::daemon::Flavour::Podman => runtime.join("podman/podman.sock"),
    };
    if let Some(directory) = place.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::os::unix::fs::symlink(scene.daemon.socket(), &place)?;
    let found = away(scene, &[("XDG_RUNTIME_DIR", &*runtime.to_string_lossy())], &["doctor", "--json"])?;
    std::fs::remove_file(&place)?;
    // Docker's system socket goes first where the machine has one, as its own client has it.
    let is_expected = |socket: &Path| found.stdout.contains(&*socket.to_string_lossy());
    if found.status.success() && (is_expected(&place) || is_expected(Path::new("/var/run/docker.sock"))) {
        Ok(())
    } else {
        Err(found.told("the socket of the user's own daemon is not found"))
    }
}

/// TLS that verifies both, by variables; and what is said when one does not believe the other.
pub(crate) fn encrypted(scene: &mut Scene) -> Result<()> {
    let Some(tls) = &scene.encrypted else { return Ok(()) };
    let with = |certificates: &Path, arguments: &[&str]| {
        let certificates = certificates.to_string_lossy();
        let variables =
            [("DOCKER_HOST", tls.host.as_str()), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", &*certificates)];
        away(scene, &variables, arguments)
    };
    works(&with(&tls.good, RUN)?)?;
    refused(&with(&tls.other_authority, RUN)?, "ca.pem")?;
    refused(&with(&tls.without_certificate, RUN)?, "cert.pem")?;
    refused(&with(Path::new("/nowhere"), RUN)?, "ca.pem")?;
    refused(&away(scene, &[("DOCKER_HOST", tls.host.as_str())], RUN)?, "DOCKER_TLS_VERIFY")
}

/// Contexts that Docker's own client made.
pub(crate) fn by_context(scene: &mut Scene) -> Result<()> {
    let Some(tls) = &scene.encrypted else { return Ok(()) };
    let client = scene.path().join("client");
    let config = client.to_string_lossy().into_owned();
    let docker = |arguments: &[&str]| -> Result<()> {
        let mut command = scene.daemon.docker();
        command.env_remove("DOCKER_HOST").env("DOCKER_CONFIG", &client).args(arguments);
        run(&mut command, scene.path(), crate::scene::LIMIT)?.succeeded().map(drop)
    };
    docker(&["context", "create", "far", "--docker", &described(tls, &tls.good)])?;
    docker(&["context", "create", "near", "--docker", &format!("host={}", scene.daemon.host())])?;
    let skipping = format!("host={},skip-tls-verify=true", tls.host);
    docker(&["context", "create", "blind", "--docker", &skipping])?;
    let with = |more: &[(&str, &str)], arguments: &[&str]| {
        away(scene, &[&[("DOCKER_CONFIG", config.as_str())][..], more].concat(), arguments)
    };
    works(&with(&[("DOCKER_CONTEXT", "far")], RUN)?)?;
    works(&with(&[], &[RUN, &["--docker-context", "near"]].concat())?)?;
    docker(&["context", "use", "far"])?;
    works(&with(&[], RUN)?)?;
    refused(&with(&[("DOCKER_CONTEXT", "blind")], RUN)?, "does not verify")?;
    refused(&with(&[("DOCKER_CONTEXT", "unheard-of")], RUN)?, "unheard-of")
}

fn described(tls: &Encrypted, certificates: &Path) -> String {
    let file = |name: &str| -> PathBuf { certificates.join(name) };
    let [authority, certificate, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| file(name).display().to_string());
    format!("host={},ca={authority},cert={certificate},key={key}", tls.host)
}

/// Our program, which is not told by its own settings where the daemon is.
fn away(scene: &Scene, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Ran> {
    scene.ran_with(&[&[("SANDPEN_DAEMON_HOST", "")][..], variables].concat(), arguments)
}

fn works(ran: &Ran) -> Result<()> {
    if ran.status.success() && ran.stdout == "there\n" { Ok(()) } else { Err(ran.told("nothing runs there")) }
}

fn refused(ran: &Ran, word: &str) -> Result<()> {
    let is_told = ran.status.code() == Some(125) && ran.stderr.contains(word) && ran.stdout.is_empty();
    if is_told { Ok(()) } else { Err(ran.told(&format!("it does not say {word:?}"))) }
}

/// A port of the loopback that leads to a socket, until the test ends.
fn forwarded(socket: &Path) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, socket) = (listener.local_addr()?.to_string(), socket.to_owned());
    std::thread::spawn(move || {
        for coming in listener.incoming().map_while(io::Result::ok) {
            let Ok(going) = UnixStream::connect(&socket) else { continue };
            let (Ok(coming_too), Ok(going_too)) = (coming.try_clone(), going.try_clone()) else { continue };
            std::thread::spawn(move || forward_in(coming, going));
            std::thread::spawn(move || forward_out(going_too, coming_too));
        }
    });
    Ok(address)
}

fn forward_in(mut from: TcpStream, mut to: UnixStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn forward_out(mut from: UnixStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
