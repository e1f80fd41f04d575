//! Our standard input and output as descriptors that nobody else in this process has.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

/// Seen of a socket of which only the half that writes was closed, where the system tells.
#[cfg(target_os = "linux")]
const WRITER_CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const WRITER_CLOSED: PollFlags = PollFlags::empty();

/// Input and output. Whatever is printed by mistake goes to standard error from here on, and nobody reads the client's
/// messages.
pub fn take() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok((input.into(), output.into()))
}

/// Until the other end of the output is closed. A pipe or a socket says so even when there is nothing to write, a file
/// never does. `false` if that cannot be known.
pub fn reader_is_gone(output: &File) -> bool {
    other_end_closed(output, PollFlags::empty())
}

/// Until the other end of the input is closed, even when there is more to read. `false` if that cannot be known.
pub fn writer_is_gone(input: &File) -> bool {
    other_end_closed(input, WRITER_CLOSED)
}

/// Whoever started us may have made the descriptor non-blocking. A failed wait is seen by the next read.
pub fn wait_to_read(input: &File) {
    let _ = poll(&mut [PollFd::new(input, PollFlags::IN)], None);
}

/// The same for the next write.
pub fn wait_to_write(output: &File) {
    let _ = poll(&mut [PollFd::new(output, PollFlags::OUT)], None);
}

fn other_end_closed(file: &File, also: PollFlags) -> bool {
    let mut watched = [PollFd::new(file, also)];
    loop {
        match poll(&mut watched, None) {
            // Said at once, and every time.
            Ok(_) if watched[0].revents().contains(PollFlags::NVAL) => return false,
            Ok(_) if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | also) => return true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::debug!(%error, "standard input and output cannot be watched");
                return false;
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn what_cannot_be_watched_is_not_watched_for_ever() {
        let place = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let place = File::from(place);
        let (told, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send((reader_is_gone(&place), writer_is_gone(&place))));
        assert_eq!(answer.recv_timeout(std::time::Duration::from_secs(20)).unwrap(), (false, false));
    }
}
