//! How the server, the launcher and process 1 talk: one message per packet, descriptors beside it.
//!
//! The other side is not trusted: every length is bounded, and a message that does not parse ends the conversation.
#![allow(dead_code, reason = "two programs share this file and each uses its part")]

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::messages::*;

/// A sandbox brings what keeps its image and the trees that are attached to it; an exec brings a channel and three streams.
pub const MAX_DESCRIPTORS: usize = 16;

/// The channel of process 1: its connection to the server, or a listening socket in a persistent sandbox.
pub const INIT_CHANNEL: i32 = 3;
/// Holds the lock on the sandbox's range of user ids for as long as process 1 lives.
pub const INIT_LOCK: i32 = 4;
/// The writable layer, as a mount that is nowhere in any tree: for those outside who may take it from here. A plain
/// directory of it before Linux 6.15.
pub const INIT_SCRATCH: i32 = 5;
/// From here on: what keeps the image and the trees that are attached, so that they are not collected while process 1
/// lives.
pub const INIT_HOLDS: i32 = 6;
/// Then the frozen layers, the lowest first. Mounts like that of the writable layer, read-only.
pub const INIT_FROZEN: i32 = INIT_HOLDS + MAX_DESCRIPTORS as i32;
/// Each of them is a descriptor of process 1, and there are programs with a low limit on those.
pub const MOST_FROZEN: usize = 32;

/// Send one message. A receiver that reads too slowly makes a blocking sender wait and a non-blocking one fail.
pub fn send(channel: BorrowedFd<'_>, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_packet(channel, &postcard::to_stdvec(message).map_err(io::Error::other)?, descriptors)
}

/// The same for a message that is bytes already.
pub fn send_packet(channel: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX_MESSAGE {
        return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
    }
    loop {
        match rustix::net::sendmsg(channel, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Receive one message, or `None` when the other side is gone.
pub fn receive<M: DeserializeOwned>(channel: BorrowedFd<'_>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    receive_message(channel, RecvFlags::empty())
}

/// The same without waiting, whatever the channel is: it fails with `WouldBlock` when there is no message yet.
pub fn receive_at_once<M: DeserializeOwned>(channel: BorrowedFd<'_>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    receive_message(channel, RecvFlags::DONTWAIT)
}

/// Have nothing of the last message in memory.
pub fn forget_last() {
    BUFFER.with_borrow_mut(|bytes| {
        bytes.fill(0);
        std::hint::black_box(bytes);
    });
}

/// Receive one message as bytes, with its descriptors; `None` when the other side is gone.
pub fn receive_packet(channel: BorrowedFd<'_>, bytes: &mut Vec<u8>) -> io::Result<Option<Vec<OwnedFd>>> {
    take_packet(channel, bytes, RecvFlags::empty())
}

fn receive_message<M: DeserializeOwned>(
    channel: BorrowedFd<'_>,
    flags: RecvFlags,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    BUFFER.with_borrow_mut(|bytes| {
        let Some(descriptors) = take_packet(channel, bytes, flags)? else { return Ok(None) };
        let message = postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some((message, descriptors)))
    })
}

thread_local! {
    /// Kept, because a fresh buffer costs more than most messages.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn take_packet(channel: BorrowedFd<'_>, bytes: &mut Vec<u8>, flags: RecvFlags) -> io::Result<Option<Vec<OwnedFd>>> {
    let Some(length) = length_of_next(channel, flags)? else { return Ok(None) };
    // As large as the message: touching the pages for the largest one takes longer than starting a program.
    bytes.resize(length.clamp(1, MAX_MESSAGE), 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = unless_gone(|| {
        let mut parts = [IoSliceMut::new(bytes)];
        rustix::net::recvmsg(channel, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC | flags)
    })?;
    let Some(received) = received else { return Ok(None) };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    bytes.truncate(received.bytes);
    Ok((received.bytes > 0).then_some(descriptors))
}

/// How long the next message is, without taking it; `None` or zero when the other side is gone.
fn length_of_next(channel: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<usize>> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | flags;
    Ok(unless_gone(|| rustix::net::recv(channel, &mut [0u8; 0], flags))?.map(|(_, length)| length))
}

/// `None` when the other side closed without having read all of ours. Linux tells that once, before what it had sent, and gVisor
/// after it and each time: so only the second time is the end.
fn unless_gone<T>(mut receive: impl FnMut() -> rustix::io::Result<T>) -> io::Result<Option<T>> {
    let mut was_told = false;
    loop {
        match receive() {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) if was_told => return Ok(None),
            Err(rustix::io::Errno::CONNRESET) => was_told = true,
            result => return Ok(Some(result?)),
        }
    }
}
