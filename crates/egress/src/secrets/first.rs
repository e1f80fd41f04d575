//! The first bytes of a connection, which say what is spoken on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Tls,
    Http,
    SomethingElse,
    /// It was closed before anything was said.
    Nothing,
}

/// Look at a connection without taking anything from it.
pub(super) async fn listen<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Spoken, Replayed<S>)> {
    let mut first = Vec::new();
    loop {
        match spoken(&first) {
            Some(spoken) => return Ok((spoken, Replayed { first, stream })),
            None => {
                let mut more = [0; 512];
                let count = stream.read(&mut more).await?;
                if count == 0 {
                    let spoken = if first.is_empty() { Spoken::Nothing } else { Spoken::SomethingElse };
                    return Ok((spoken, Replayed { first, stream }));
                }
                first.extend_from_slice(&more[..count]);
            }
        }
    }
}

/// `None` while it could still be HTTP. No protocol in which the client speaks first begins with one of these words and a
/// space, except HTTP.
fn spoken(first: &[u8]) -> Option<Spoken> {
    const HANDSHAKE: u8 = 22;
    match first {
        [] => return None,
        [HANDSHAKE, ..] => return Some(Spoken::Tls),
        [..] => {}
    }
    let mut undecided = false;
    for method in METHODS {
        let mut word = method.as_bytes().to_vec();
        word.push(b' ');
        if first.starts_with(&word) {
            return Some(Spoken::Http);
        }
        undecided |= word.starts_with(first);
    }
    if undecided { None } else { Some(Spoken::SomethingElse) }
}

const METHODS: [&str; 18] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
];

/// A connection from its beginning.
#[derive(Debug)]
pub(crate) struct Replayed<S> {
    first: Vec<u8>,
    stream: S,
}

impl<S> Replayed<S> {
    pub fn new(first: impl Into<Vec<u8>>, stream: S) -> Self {
        Self { first: first.into(), stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = buffer.remaining().min(self.first.len());
        let rest = self.first.split_off(count);
        buffer.put_slice(&self.first);
        self.first = rest;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_known_by_its_first_bytes_and_keeps_them() {
        for (bytes, expected) in [
            (&b"\x16\x03\x01\x02\x00\x01"[..], Spoken::Tls),
            (b"GET / HTTP/1.1\r\n", Spoken::Http),
            (b"PROPPATCH /a HTTP/1.1\r\n", Spoken::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Spoken::SomethingElse),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", Spoken::SomethingElse),
            (b"EHLO host\r\n", Spoken::SomethingElse),
            (b"\x80\x2e\x01\x00", Spoken::SomethingElse),
            (b"GE", Spoken::SomethingElse),
            (b"", Spoken::Nothing),
        ] {
            let (spoken, mut replayed) = listen(bytes).await.unwrap();
            assert_eq!(spoken, expected, "{bytes:?}");
            let mut all = Vec::new();
            replayed.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, bytes);
        }
    }
}
