//! What a bridge sends: bytes are refused, or mean one thing only, however they are cut; and a server that hears them goes
//! on or ends the connection.

use std::time::Duration;

use agent::Connection;
use agent::frame::{self, Decoder, Frame};
use sandbox::{ByteRange, ExecRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub const SEEDS: &[&[u8]] = &[
    // Started, some output, its end, and how the command ended.
    b"\x01\x00\x00\x00\x03\x01\x00\x00\x00\x00\x00\
      \x05\x00\x00\x00\x03\x01\x00\x00\x00\x02hello\
      \x00\x00\x00\x00\x04\x01\x00\x00\x00\x02\
      \x08\x00\x00\x00\x03\x01\x00\x00\x00\x00\x02\x00\x00\x01\x01\x01\x00\x00",
    // A file that is opened, a part of it, and a sender that breaks off.
    b"\x0a\x00\x00\x00\x03\x02\x00\x00\x00\x00\x02\x00\x05\xa4\x03\x00\x00\x00\x00\x00\
      \x03\x00\x00\x00\x03\x02\x00\x00\x00\x02abc\x00\x00\x00\x00\x05\x02\x00\x00\x00\x02",
    b"\x04\x00\x00\x00\x06\x01\x00\x00\x00\x01\x00\x00\x00\x00",
    b"\x01\x00\x00\x00\x01\x03\x00\x00\x00\x00\x01",
    b"\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x03\x01\x00\x00\x00\x02",
];

pub fn frames(data: &[u8]) {
    let whole = decoded(data, data.len().max(1));
    assert_eq!(whole, decoded(data, 1), "frames depend on how they are cut");
    if let Ok((count, bytes)) = &whole {
        assert!(data.starts_with(bytes), "{count} frames are written otherwise than they were read");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), hear(data)).await });
    assert!(ended.is_ok(), "somebody waits for ever");
}

/// How many frames there are, and the bytes that they are written as.
fn decoded(data: &[u8], size: usize) -> Result<(usize, Vec<u8>), frame::Malformed> {
    let (mut decoder, mut count, mut bytes) = (Decoder::default(), 0, Vec::new());
    for part in data.chunks(size) {
        decoder.take(part);
        while let Some(frame) = decoder.next_frame()? {
            let Frame { kind, work, lane, payload } = frame;
            Frame::new(kind, work, lane, payload).write(&mut bytes);
            count += 1;
        }
    }
    Ok((count, bytes))
}

/// A command and a file are under way, and the other side says this and closes.
async fn hear(data: &[u8]) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(&frame::hello()).await.expect("room");
    let (reader, writer) = tokio::io::split(ours);
    let connection = Connection::open(reader, writer, "token").await.expect("a connection");
    let request = ExecRequest::new(["program"], Duration::from_secs(1)).expect("a request");
    let path = "/workspace/file".parse().expect("a path");
    let files = connection.files();
    let command = async {
        if let Ok(mut process) = connection.start(&request).await {
            let mut bytes = Vec::new();
            let _ = process.stdout.read_to_end(&mut bytes).await;
            let _ = process.control.wait().await;
        }
    };
    let file = async {
        if let Ok(mut file) = files.read(&path, ByteRange::default()).await {
            let mut bytes = Vec::new();
            let _ = file.stream.read_to_end(&mut bytes).await;
        }
    };
    let inside = async {
        tokio::task::yield_now().await;
        let _ = theirs.write_all(data).await;
        drop(theirs);
    };
    let _ = tokio::join!(command, file, connection.measure(), inside);
    assert!(connection.measure().await.is_err(), "a connection that is closed gives answers");
}
