//! What differs between the systems that a server runs on, as far as it is about files of its own. Sandboxes run Linux
//! on all of them.

#[cfg_attr(unix, path = "system/unix.rs")]
#[cfg_attr(windows, path = "system/windows.rs")]
mod this;

pub use this::{
    allow_descriptors, exposure, file_of_another, is_at, is_link, is_root, keep_out_of_core_dumps, lock_of,
    private_directory, private_file, read_at, sync_directory, write_at,
};

/// Why a file is not for its owner alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// It belongs to somebody else than `user`, who we are.
    OfAnother { user: u32 },
    /// Others may read or write it.
    Open,
}

/// Exactly as many bytes as `bytes` has room for.
pub fn read_exact_at(file: &std::fs::File, bytes: &mut [u8], position: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match read_at(file, &mut bytes[done..], position + done as u64)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

pub fn write_all_at(file: &std::fs::File, bytes: &[u8], position: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match write_at(file, &bytes[done..], position + done as u64)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}
