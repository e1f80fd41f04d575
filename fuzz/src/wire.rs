//! Messages between server and process 1: bytes are refused, or mean one thing only.

use engine_native::inside::{FromExec, FromFile, FromInit, ToExec, ToFile, ToInit};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub const SEEDS: &[&[u8]] = &[
    b"\x00\x00\x01\x07/bin/sh\x00\x00\x00\x00\x00",
    b"\x01\x01\x02\x01/\x01\x05",
    b"\x02\x02\x01\x80\x80\x01",
    b"\x03\x03\x00\x04name\x00\x01",
    b"\x04\x04\xff\xff\xff\xff\x0f",
    b"\x05\x00",
];

/// The first byte chooses who listens.
pub fn wire(data: &[u8]) {
    let Some((&listener, message)) = data.split_first() else { return };
    match listener % 6 {
        0 => decode::<ToInit>(message),
        1 => decode::<FromInit>(message),
        2 => decode::<ToExec>(message),
        3 => decode::<FromExec>(message),
        4 => decode::<ToFile>(message),
        _ => decode::<FromFile>(message),
    }
}

fn decode<M: DeserializeOwned + Serialize>(bytes: &[u8]) {
    let Ok(message) = postcard::from_bytes::<M>(bytes) else { return };
    let again = postcard::to_stdvec(&message).expect("what was read can be written");
    // A number may be written with more bytes than it needs; what is written again never is.
    assert!(again.len() <= bytes.len(), "a message grew from {} to {} bytes", bytes.len(), again.len());
    let third = postcard::from_bytes::<M>(&again).and_then(|message| postcard::to_stdvec(&message));
    assert_eq!(third.as_ref(), Ok(&again), "a message changes its meaning");
}
