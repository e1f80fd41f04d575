//! `multipart/form-data`, a piece at a time.
//!
//! Written here because what there is keeps the head of a part, however long, in memory until it ends.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

use super::failure::Failure;
use super::intake::Intake;

/// Of the head of one part.
const MOST_HEAD_BYTES: usize = 16 << 10;

/// As the standard has it.
const MOST_BOUNDARY_BYTES: usize = 70;

#[derive(Debug)]
pub struct Form<'a> {
    intake: &'a mut Intake,
    /// What has come and was not given on.
    buffer: BytesMut,
    /// What stands before every part and at the end.
    delimiter: Vec<u8>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first part, or in one.
    Contents,
    /// Right behind a delimiter.
    Delimiter,
    End,
}

/// What a part says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// The name of a file, byte for byte; a part without one is a field.
    pub file_name: Option<Vec<u8>>,
}

impl<'a> Form<'a> {
    /// `None` when the content type is another, or names no boundary.
    pub fn new(content_type: &str, intake: &'a mut Intake) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(parameters.as_bytes(), b"boundary").ok().flatten()?;
        if boundary.is_empty() || boundary.len() > MOST_BOUNDARY_BYTES {
            return None;
        }
        let delimiter = [b"\r\n--", boundary.as_slice()].concat();
        // The first one stands at the very beginning, without the end of a line before it.
        Some(Self { intake, buffer: BytesMut::from(&b"\r\n"[..]), delimiter, place: Place::Contents })
    }

    /// The next part; what is left of the one before is skipped.
    pub async fn next(&mut self) -> Result<Option<PartHead>, Failure> {
        while self.piece().await?.is_some() {}
        if self.place == Place::End {
            return Ok(None);
        }
        self.have(2).await?;
        if self.buffer.starts_with(b"--") {
            self.place = Place::End;
            // What follows the end means nothing, and must be read for the answer to be heard.
            while self.intake.next().await?.is_some() {}
            return Ok(None);
        }
        let line = self.until(b"\r\n").await?;
        if !line.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(Failure::Broken);
        }
        let mut file_name = None;
        let mut left = MOST_HEAD_BYTES;
        loop {
            let line = self.until(b"\r\n").await?;
            left = left.checked_sub(line.len() + 2).ok_or(Failure::Broken)?;
            if line.is_empty() {
                break;
            }
            let colon = line.iter().position(|byte| *byte == b':').ok_or(Failure::Broken)?;
            if !line[..colon].eq_ignore_ascii_case(b"content-disposition") {
                continue;
            }
            // A second one would mean something else to another reader.
            if file_name.is_some() {
                return Err(Failure::Broken);
            }
            file_name = Some(parameter(&line[colon + 1..], b"filename").map_err(|Ambiguous| Failure::Broken)?);
        }
        self.place = Place::Contents;
        Ok(Some(PartHead { file_name: file_name.ok_or(Failure::Broken)? }))
    }

    /// More of the part; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.place != Place::Contents {
            return Ok(None);
        }
        loop {
            match memmem::find(&self.buffer, &self.delimiter) {
                Some(0) => {
                    self.buffer.advance(self.delimiter.len());
                    self.place = Place::Delimiter;
                    return Ok(None);
                }
                Some(end) => return Ok(Some(self.buffer.split_to(end).freeze())),
                None => {}
            }
            // All but what may be the beginning of a delimiter.
            let sure = (self.buffer.len() + 1).saturating_sub(self.delimiter.len());
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), Failure> {
        let piece = self.intake.next().await?.ok_or(Failure::Broken)?;
        self.buffer.extend_from_slice(&piece);
        Ok(())
    }

    async fn have(&mut self, bytes: usize) -> Result<(), Failure> {
        while self.buffer.len() < bytes {
            self.more().await?;
        }
        Ok(())
    }

    async fn until(&mut self, end: &[u8]) -> Result<Bytes, Failure> {
        loop {
            if let Some(found) = memmem::find(&self.buffer, end) {
                let line = self.buffer.split_to(found).freeze();
                self.buffer.advance(end.len());
                return Ok(line);
            }
            if self.buffer.len() > MOST_HEAD_BYTES {
                return Err(Failure::Broken);
            }
            self.more().await?;
        }
    }
}

/// It is there twice, or does not end.
#[derive(Debug)]
struct Ambiguous;

/// A parameter of a header, byte for byte. Nothing is an escape in it: browsers write backslashes as they are.
fn parameter(mut text: &[u8], wanted: &[u8]) -> Result<Option<Vec<u8>>, Ambiguous> {
    let mut found = None;
    while !text.is_empty() {
        let end = text.iter().position(|byte| matches!(byte, b';' | b'=')).unwrap_or(text.len());
        let name = text[..end].trim_ascii();
        let is_wanted = name.eq_ignore_ascii_case(wanted);
        if text.get(end) != Some(&b'=') {
            text = text.get(end + 1..).unwrap_or_default();
            continue;
        }
        let value = text[end + 1..].trim_ascii_start();
        let (value, rest) = match value.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|byte| *byte == b'"').ok_or(Ambiguous)?;
                (&quoted[..end], &quoted[end + 1..])
            }
            None => {
                let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
                (value[..end].trim_ascii(), &value[end..])
            }
        };
        if is_wanted && found.replace(value.to_vec()).is_some() {
            return Err(Ambiguous);
        }
        text = match rest.trim_ascii_start() {
            [] => &[],
            [b';', rest @ ..] => rest,
            _ => return Err(Ambiguous),
        };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::HeaderMap;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XX";

    type Parts = Vec<(Option<Vec<u8>>, Vec<u8>)>;

    /// What a form is understood as that comes in pieces of this size.
    async fn read(form: &[u8], size: usize) -> Result<Parts, Failure> {
        let pieces: Vec<_> = form.chunks(size).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let mut intake = Intake::new(&HeaderMap::new(), Body::from_stream(tokio_stream::iter(pieces)), 1 << 20);
        let mut form = Form::new(TYPE, &mut intake).unwrap();
        let mut parts = Vec::new();
        while let Some(head) = form.next().await? {
            let mut contents = Vec::new();
            while let Some(piece) = form.piece().await? {
                contents.extend_from_slice(&piece);
            }
            parts.push((head.file_name, contents));
        }
        Ok(parts)
    }

    fn part(disposition: &str, contents: &str) -> String {
        format!("--XX\r\nContent-Disposition: form-data{disposition}\r\nContent-Type: x/y\r\n\r\n{contents}\r\n")
    }

    #[tokio::test]
    async fn parts_are_the_same_however_they_are_cut() {
        let tricky = "a\r\n--X\r\n\r\n--\r--XX\n--XX";
        let form = part("; name=\"f\"; filename=\"a;b=\\c.txt\"", tricky)
            + &part("; name=field", "")
            + &part("; filename=x", "\r\n")
            + "--XX--\r\nrest";
        let expected = vec![
            (Some(b"a;b=\\c.txt".to_vec()), tricky.as_bytes().to_vec()),
            (None, Vec::new()),
            (Some(b"x".to_vec()), b"\r\n".to_vec()),
        ];
        for size in (1..40).chain([form.len()]) {
            assert_eq!(read(form.as_bytes(), size).await.unwrap(), expected, "in pieces of {size}");
        }
        let with_preamble = format!("to be ignored\r\n{form}");
        assert_eq!(read(with_preamble.as_bytes(), 7).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn what_is_not_whole_or_means_two_things_is_refused() {
        let whole = part("; filename=\"a\"", "abc") + "--XX--";
        assert!(read(whole.as_bytes(), 5).await.is_ok());
        for cut in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..cut], 5).await.is_err(), "cut at {cut}");
        }
        for head in
            ["; filename=\"a\"; filename=\"b\"", "; filename=\"a", "; filename=\"a\"b", "\r\nContent-Disposition: x"]
        {
            assert!(read((part(head, "abc") + "--XX--").as_bytes(), 9).await.is_err(), "{head:?}");
        }
        let long = format!("; filename=\"{}\"", "x".repeat(MOST_HEAD_BYTES));
        assert!(read((part(&long, "abc") + "--XX--").as_bytes(), 1000).await.is_err());
        let endless = format!("--XX\r\n{}", "a: b\r\n".repeat(MOST_HEAD_BYTES));
        assert!(read(endless.as_bytes(), 1000).await.is_err());
        assert!(read(b"--XX\r\n\r\nno disposition\r\n--XX--", 9).await.is_err());
    }

    #[tokio::test]
    async fn a_boundary_is_asked_for() {
        let mut intake = Intake::new(&HeaderMap::new(), Body::empty(), 1);
        for wrong in ["", "multipart/form-data", "multipart/form-data; boundary=", "text/plain; boundary=a"] {
            assert!(Form::new(wrong, &mut intake).is_none(), "{wrong:?}");
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        assert!(Form::new(&long, &mut intake).is_none());
        assert!(Form::new("Multipart/Form-Data; charset=x; boundary=\"a b\"", &mut intake).is_some());
    }
}
