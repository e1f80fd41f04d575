//! Our standard input and output as handles.

use std::fs::File;
use std::io;
use std::os::windows::io::AsHandle;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(10);

/// Input and output.
pub fn take() -> io::Result<(File, File)> {
    let input = io::stdin().as_handle().try_clone_to_owned()?;
    let output = io::stdout().as_handle().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

/// A pipe of Windows tells it to whoever writes, and to nobody else.
pub fn reader_is_gone(_: &File) -> bool {
    false
}

/// The same for whoever reads.
pub fn writer_is_gone(_: &File) -> bool {
    false
}

pub fn wait_to_read(_: &File) {
    std::thread::sleep(PAUSE);
}

pub fn wait_to_write(_: &File) {
    std::thread::sleep(PAUSE);
}
