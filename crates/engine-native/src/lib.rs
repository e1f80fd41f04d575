pub mod image;
pub mod seccomp;
