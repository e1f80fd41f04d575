//! What a service manager gives to a process and wants to hear of it, as systemd does.

use std::net::TcpListener;

use sandbox::Result;

/// What the manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Requests are served.
    Ready,
    Stopping,
}

impl Condition {
    fn message(self) -> &'static [u8] {
        match self {
            Self::Ready => b"READY=1",
            Self::Stopping => b"STOPPING=1",
        }
    }
}

/// The socket that this process was started with. It outlives the process: whoever connects while another takes its place
/// waits, and is not refused.
#[cfg(unix)]
pub fn inherited_listener() -> Result<Option<TcpListener>> {
    use sandbox::Error;

    let unusable =
        |why: &str| Error::invalid_input(format!("the socket that this was started with cannot be used: {why}"));
    let mut given = listenfd::ListenFd::from_env();
    if given.len() > 1 {
        return Err(unusable("there are several").with_hint("name one ListenStream= in the socket's unit"));
    }
    let listener = given.take_tcp_listener(0).map_err(|cause| unusable("it is no TCP socket").with_cause(cause))?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true).map_err(|cause| unusable("it cannot be polled").with_cause(cause))?;
    }
    Ok(listener)
}

#[cfg(not(unix))]
pub fn inherited_listener() -> Result<Option<TcpListener>> {
    Ok(None)
}

/// If there is one that wants to know. One that does not listen is no reason to end.
#[cfg(target_os = "linux")]
pub fn tell(condition: Condition) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = (|| {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
        };
        UnixDatagram::unbound()?.send_to_addr(condition.message(), &address)
    })();
    if let Err(error) = told {
        tracing::warn!(%error, ?condition, "the service manager does not listen");
    }
}

#[cfg(not(target_os = "linux"))]
pub fn tell(condition: Condition) {
    let _ = condition.message();
}
