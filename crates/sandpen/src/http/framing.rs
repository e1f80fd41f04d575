//! Where a request ends, said in one way alone. What a proxy in front and this server could read differently is read by
//! nobody: of two requests one would see one, and take the rest for somebody else's.
//!
//! The HTTP library takes lines that end with a bare line feed, and a length beside pieces. Here bytes are looked at before it
//! sees them, and the connection is given up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More than the library takes, which is what says so.
const MOST: usize = 128 << 10;

/// A stream of requests that are all framed clearly.
#[derive(Debug)]
pub struct Clear<S> {
    stream: S,
    place: Place,
    switch: Switch,
}

/// Among the extensions of each request of a connection, for whoever agrees with the client to go on in another protocol.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    /// To be said before the answer that agrees. What the client has sent before it knew was looked at as if it were requests.
    pub fn leave_http(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What the next byte belongs to.
#[derive(Debug)]
enum Place {
    /// A head, so far.
    Head(Vec<u8>),
    /// A body, of which so much is left.
    Body(u64),
    /// The line with the size of a piece.
    Size(Vec<u8>),
    /// A piece with the end of its line, of which so much is left.
    Piece(u64),
    /// Lines after the last piece, until an empty one.
    Trailer(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unclear(&'static str);

impl Place {
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Unclear> {
        while let [first, rest @ ..] = bytes {
            bytes = match self {
                Self::Body(left) => {
                    let rest = skip(left, bytes);
                    if *left == 0 {
                        *self = Self::Head(Vec::new());
                    }
                    rest
                }
                Self::Piece(left) => {
                    let rest = skip(left, bytes);
                    if *left == 0 {
                        *self = Self::Size(Vec::new());
                    }
                    rest
                }
                Self::Head(line) | Self::Size(line) | Self::Trailer(line) => {
                    if *first == b'\n' && line.last() != Some(&b'\r') {
                        return Err(Unclear("a line ends with a line feed alone"));
                    }
                    if line.len() >= MOST {
                        return Err(Unclear("a head has no end"));
                    }
                    line.push(*first);
                    self.end_of_line()?;
                    rest
                }
            };
        }
        Ok(())
    }

    fn end_of_line(&mut self) -> Result<(), Unclear> {
        match self {
            // Empty lines before a request are nothing.
            Self::Head(head) if *head == b"\r\n" => head.clear(),
            Self::Head(head) if head.ends_with(b"\r\n\r\n") => *self = after(head)?,
            Self::Size(line) if line.ends_with(b"\r\n") => *self = piece(line)?,
            Self::Trailer(lines) if *lines == b"\r\n" || lines.ends_with(b"\r\n\r\n") => *self = Self::Head(Vec::new()),
            Self::Head(_) | Self::Size(_) | Self::Trailer(_) | Self::Body(_) | Self::Piece(_) => {}
        }
        Ok(())
    }
}

/// What is behind the bytes of which so many are left.
fn skip<'a>(left: &mut u64, bytes: &'a [u8]) -> &'a [u8] {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= taken as u64;
    &bytes[taken..]
}

/// What comes after a head.
fn after(head: &[u8]) -> Result<Place, Unclear> {
    let (mut length, mut in_pieces) = (None, false);
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = number.and_then(|text| text.parse::<u64>().ok()).ok_or(Unclear("a length is none"))?;
            if length.replace(number).is_some() {
                return Err(Unclear("there are two lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if in_pieces || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Unclear("a body is encoded in an unknown way"));
            }
            in_pieces = true;
        }
    }
    match (length, in_pieces) {
        (Some(_), true) => Err(Unclear("there is a length, and a body in pieces")),
        (None, true) => Ok(Place::Size(Vec::new())),
        (Some(0) | None, false) => Ok(Place::Head(Vec::new())),
        (Some(length), false) => Ok(Place::Body(length)),
    }
}

fn piece(line: &[u8]) -> Result<Place, Unclear> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(0);
    let text = std::str::from_utf8(&line[..digits]).unwrap_or_default();
    match u64::from_str_radix(text, 16) {
        Ok(0) => Ok(Place::Trailer(Vec::new())),
        // With the end of its line.
        Ok(size) => size.checked_add(2).map(Place::Piece).ok_or(Unclear("a piece is too large")),
        Err(_) => Err(Unclear("the size of a piece is none")),
    }
}

impl<S> Clear<S> {
    pub fn new(stream: S, switch: Switch) -> Self {
        Self { stream, place: Place::Head(Vec::new()), switch }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Clear<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if this.switch.has_left() {
            return Poll::Ready(Ok(()));
        }
        let taken = this.place.take(&buffer.filled()[before..]);
        Poll::Ready(taken.map_err(|Unclear(why)| io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Clear<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pieces of every size, which must not matter.
    fn taken(text: &str) -> Result<(), Unclear> {
        let results = [1, 2, 3, 7, text.len().max(1)].map(|size| {
            let mut place = Place::Head(Vec::new());
            text.as_bytes().chunks(size).try_for_each(|bytes| place.take(bytes))
        });
        assert!(results.iter().all(|result| *result == results[0]), "{text:?}: {results:?}");
        results[0]
    }

    #[test]
    fn requests_one_after_the_other_are_clear() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na\nb\n\n";
        let pieces = "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\n\r\n";
        let trailer = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n";
        assert_eq!(taken(&[get, post, get, pieces, "\r\n", trailer, post, get].concat()), Ok(()));
        assert_eq!(taken(""), Ok(()));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_not_read() {
        let with = |lines: &str, body: &str| taken(&format!("POST / HTTP/1.1\r\n{lines}\r\n{body}"));
        assert!(taken("GET / HTTP/1.1\nhost: a\n\n").is_err());
        assert!(with("host: a\nx: y\r\n", "").is_err());
        assert!(with("content-length: 1\r\ncontent-length: 2\r\n", "").is_err());
        assert!(with("content-length: 1\r\ncontent-length: 1\r\n", "").is_err());
        assert!(with("content-length: +1\r\n", "").is_err());
        assert!(with("content-length: \r\n", "").is_err());
        assert!(with("content-length: 5\r\ntransfer-encoding: chunked\r\n", "").is_err());
        assert!(with("transfer-encoding: chunked\r\ncontent-length: 5\r\n", "").is_err());
        assert!(with("transfer-encoding: gzip, chunked\r\n", "").is_err());
        assert!(with("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "").is_err());
        assert!(with("transfer-encoding: chunked\r\n", "2\n{}\r\n").is_err());
        assert!(with("transfer-encoding: chunked\r\n", "x\r\n").is_err());
        assert!(with("transfer-encoding: chunked\r\n", "ffffffffffffffff\r\n").is_err());
        assert!(with("transfer-encoding: chunked\r\n", "0\r\nx: y\n").is_err());
        assert!(taken(&"a".repeat(MOST + 1)).is_err());
    }
}
