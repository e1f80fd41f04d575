//! The name that a TLS client says it wants, from the first bytes it sends. Pure.
//!
//! Not a TLS implementation: only as much as is needed to find one extension of one message, which must be read without
//! answering it.

use std::ops::RangeInclusive;

use sandbox::{Host, HostName};

/// The longest first message that is waited for. With keys for quantum computers they have about 2 KiB.
pub(crate) const MOST_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// More bytes decide.
    Unfinished,
    NotTls,
    /// A client that says no name.
    Nameless,
    Named(Host),
    /// It begins like TLS and then makes no sense.
    Malformed,
}

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME_EXTENSION: u16 = 0;
const HOST_NAME_KIND: u8 = 0;

/// Records by their first byte: change of cipher, alert, handshake, data, heartbeat.
const RECORDS: RangeInclusive<u8> = 20..=24;

/// Whose first record has a version like this is taken for a TLS client by the most lenient servers.
const LENIENT_MAJORS: RangeInclusive<u8> = 0..=15;

/// What the first bytes of a client say.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    match bytes {
        [] => Hello::Unfinished,
        [kind] if RECORDS.contains(kind) => Hello::Unfinished,
        [HANDSHAKE_RECORD, 3, ..] => match message(bytes) {
            Message::Unfinished if bytes.len() >= MOST_BYTES => Hello::Malformed,
            Message::Unfinished => Hello::Unfinished,
            Message::Malformed => Hello::Malformed,
            Message::ClientHello(body) => server_name(&body).unwrap_or(Hello::Malformed),
        },
        // Some servers pass over a warning before the greeting, or over a version that never was, and then read a name that
        // was not seen here. No client that means well begins like that.
        [kind, major, ..] if RECORDS.contains(kind) && LENIENT_MAJORS.contains(major) => Hello::Malformed,
        [..] => Hello::NotTls,
    }
}

enum Message {
    Unfinished,
    Malformed,
    ClientHello(Vec<u8>),
}

/// The first handshake message, put together from as many records as a client chose to cut it into.
fn message(bytes: &[u8]) -> Message {
    let mut records = Reader(bytes);
    let mut fragments = Vec::new();
    loop {
        if let [kind, rest @ ..] = fragments.as_slice() {
            let mut rest = Reader(rest);
            if *kind != CLIENT_HELLO {
                return Message::Malformed;
            }
            if let Some(body) = rest.long_block() {
                return Message::ClientHello(body.to_vec());
            }
        }
        match (records.byte(), records.byte(), records.byte(), records.block()) {
            (Some(HANDSHAKE_RECORD), Some(3), Some(_), Some([])) => return Message::Malformed,
            (Some(HANDSHAKE_RECORD), Some(3), Some(_), Some(fragment)) => fragments.extend_from_slice(fragment),
            (None | Some(HANDSHAKE_RECORD), None | Some(3), _, None) => return Message::Unfinished,
            (_, _, _, _) => return Message::Malformed,
        }
    }
}

fn server_name(body: &[u8]) -> Option<Hello> {
    let mut hello = Reader(body);
    hello.take(2 + 32)?;
    hello.short_block()?;
    hello.block()?;
    hello.short_block()?;
    if hello.0.is_empty() {
        return Some(Hello::Nameless);
    }
    let mut extensions = Reader(hello.block()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.block()?;
        if kind == SERVER_NAME_EXTENSION {
            // Two of them, and a server may read the other one.
            if found.is_some() {
                return None;
            }
            found = Some(host(content)?);
        }
    }
    Some(found.map_or(Hello::Nameless, Hello::Named))
}

fn host(extension: &[u8]) -> Option<Host> {
    let mut list = Reader(Reader(extension).block()?);
    if list.byte()? != HOST_NAME_KIND {
        return None;
    }
    let name = std::str::from_utf8(list.block()?).ok()?;
    if !list.0.is_empty() {
        return None;
    }
    // Names only, says the standard, but some clients put an address here.
    name.parse::<HostName>().map(Host::Name).or_else(|_| name.parse()).ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn short_block(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    fn block(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(length.into())
    }

    fn long_block(&mut self) -> Option<&'a [u8]> {
        let length = self.take(3)?;
        self.take(u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// What a real client says first.
    fn hello(name: &str, server_name: bool) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        config.enable_sni = server_name;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn named(name: &str) -> Hello {
        Hello::Named(name.parse().unwrap())
    }

    /// The same message in records of `size` bytes.
    fn cut(hello: &[u8], size: usize) -> Vec<u8> {
        let records = hello[5..].chunks(size).map(|part| {
            let length = u16::try_from(part.len()).unwrap().to_be_bytes();
            [&[22, 3, 1], &length[..], part].concat()
        });
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn the_name_of_a_real_client_is_found() {
        assert_eq!(read(&hello("api.example.com", true)), named("api.example.com"));
        assert_eq!(read(&hello("API.Example.com", true)), named("api.example.com"));
        assert_eq!(read(&hello("api.example.com", false)), Hello::Nameless);
        assert_eq!(read(&hello("192.0.2.1", true)), Hello::Nameless);
    }

    #[test]
    fn it_is_found_in_pieces_and_never_before_it_is_whole() {
        let whole = hello("api.example.com", true);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Hello::Unfinished, "after {end} bytes");
        }
        for size in [1, 2, 3, 7, 100] {
            let cut = cut(&whole, size);
            assert_eq!(read(&cut), named("api.example.com"), "in records of {size}");
            assert_eq!(read(&cut[..cut.len() - 1]), Hello::Unfinished);
        }
        let followed = [whole.as_slice(), b"and more"].concat();
        assert_eq!(read(&followed), named("api.example.com"));
    }

    #[test]
    fn other_protocols_are_let_be() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", b"\x16\x10", b"\x15x", b"\0"] {
            assert_eq!(read(bytes), Hello::NotTls, "{bytes:?}");
        }
    }

    #[test]
    fn what_begins_like_tls_must_go_on_like_it() {
        let whole = hello("api.example.com", true);
        let mut server_hello = whole.clone();
        server_hello[5] = 2;
        let mut no_record = whole.clone();
        no_record.truncate(5 + 50);
        no_record[3..5].copy_from_slice(&50u16.to_be_bytes());
        no_record.extend_from_slice(b"plain text after a fragment");
        let mut short_body = whole.clone();
        short_body[6..9].copy_from_slice(&[0, 0, 60]);
        for bytes in [server_hello, no_record, short_body, vec![22, 3, 1, 0, 0, 22, 3, 1]] {
            assert_eq!(read(&bytes), Hello::Malformed, "{bytes:?}");
        }
        let endless = [vec![22, 3, 1, 255, 255, 1, 255, 255, 255], vec![0; MOST_BYTES]].concat();
        assert!(matches!(read(&endless), Hello::Malformed));
    }

    #[test]
    fn a_greeting_in_disguise_is_no_other_protocol() {
        let whole = hello("api.example.com", true);
        let warning = [&[21, 3, 1, 0, 2, 1, 90], whole.as_slice()].concat();
        let change = [&[20, 3, 3, 0, 1, 1], whole.as_slice()].concat();
        let version = |major| [&[22, major, 0], &whole[3..]].concat();
        for bytes in [warning, change, version(0), version(2), version(4), version(15)] {
            assert_eq!(read(&bytes[..1]), Hello::Unfinished);
            assert_eq!(read(&bytes), Hello::Malformed, "{:?}", &bytes[..16]);
        }
    }

    #[test]
    fn two_names_are_none() {
        let whole = hello("a.example", true);
        let at = whole.windows(9).position(|window| window == b"a.example").unwrap();
        let extension = whole[at - 9..at + 9].to_vec();
        assert_eq!(extension[..2], [0, 0], "the extension begins with its number");
        let mut doubled = whole.clone();
        doubled.splice(at - 9..at - 9, extension.iter().copied());
        let added = extension.len();
        for (position, bytes) in [(3, 2), (6, 3)] {
            add(&mut doubled[position..position + bytes], added);
        }
        let extensions = 5 + 4 + 2 + 32;
        let session = usize::from(whole[extensions]);
        let suites = extensions + 1 + session;
        let methods = suites + 2 + usize::from(u16::from_be_bytes([whole[suites], whole[suites + 1]]));
        let list = methods + 1 + usize::from(whole[methods]);
        add(&mut doubled[list..list + 2], added);
        assert_eq!(read(&doubled), Hello::Malformed);
    }

    fn add(number: &mut [u8], more: usize) {
        let value = number.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)) + more;
        let bytes = value.to_be_bytes();
        number.copy_from_slice(&bytes[bytes.len() - number.len()..]);
    }
}
