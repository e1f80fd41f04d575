//! Numbers of errors as Linux counts them, on whatever system the server runs.

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const E2BIG: i32 = 7;
pub const ENOEXEC: i32 = 8;
pub const EAGAIN: i32 = 11;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EBUSY: i32 = 16;
pub const EEXIST: i32 = 17;
pub const EXDEV: i32 = 18;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const ENOSPC: i32 = 28;
pub const EROFS: i32 = 30;
pub const ENAMETOOLONG: i32 = 36;
pub const ENOTEMPTY: i32 = 39;
pub const ELOOP: i32 = 40;
pub const EDQUOT: i32 = 122;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Error, ErrorKind};

    #[test]
    fn they_are_those_of_the_kernel() {
        let known = [
            (super::EPERM, ErrorKind::PermissionDenied),
            (super::ENOENT, ErrorKind::NotFound),
            (super::E2BIG, ErrorKind::ArgumentListTooLong),
            (super::EAGAIN, ErrorKind::WouldBlock),
            (super::ENOMEM, ErrorKind::OutOfMemory),
            (super::EACCES, ErrorKind::PermissionDenied),
            (super::EBUSY, ErrorKind::ResourceBusy),
            (super::EEXIST, ErrorKind::AlreadyExists),
            (super::EXDEV, ErrorKind::CrossesDevices),
            (super::ENOTDIR, ErrorKind::NotADirectory),
            (super::EISDIR, ErrorKind::IsADirectory),
            (super::EINVAL, ErrorKind::InvalidInput),
            (super::ENOSPC, ErrorKind::StorageFull),
            (super::EROFS, ErrorKind::ReadOnlyFilesystem),
            (super::ENOTEMPTY, ErrorKind::DirectoryNotEmpty),
            (super::EDQUOT, ErrorKind::QuotaExceeded),
        ];
        for (number, kind) in known {
            assert_eq!(Error::from_raw_os_error(number).kind(), kind, "{number}");
        }
    }
}
