//! Addresses of what can be read: files of sandboxes and outputs of jobs.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use sandbox::{Error, GuestPath, Result, SandboxId};

/// Everything that would end or change a path in an address.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

pub const FILE_TEMPLATE: &str = "sandbox://{sandbox_id}/{path}";

pub fn file(id: &SandboxId, path: &GuestPath) -> String {
    format!("sandbox://{id}{}", percent_encode(path.as_bytes(), ESCAPED))
}

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    File { id: SandboxId, path: GuestPath },
}

pub fn parse(uri: &str) -> Result<Named> {
    let wrong = || {
        Error::not_found("there is no such resource")
            .with_hint("addresses look like sandbox://SANDBOX_ID/workspace/file.txt")
    };
    let (scheme, rest) = uri.split_once("://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').ok_or_else(wrong)?;
    match scheme {
        "sandbox" => {
            let path: Vec<u8> = percent_decode_str(path).collect();
            Ok(Named::File {
                id: authority.parse().map_err(|_| wrong())?,
                path: GuestPath::resolve(&GuestPath::root(), &path)?,
            })
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_back_to_its_file() {
        let id = SandboxId::random().unwrap();
        for name in ["plot.png", "a b#c?.txt", "100%.csv", "ä/ö.txt", "[x]{y}"] {
            let path = GuestPath::resolve(&GuestPath::workspace(), name.as_bytes()).unwrap();
            let uri = file(&id, &path);
            assert!(uri.is_ascii() && !uri.contains(' '), "{uri}");
            assert_eq!(parse(&uri).unwrap(), Named::File { id: id.clone(), path });
        }
    }

    #[test]
    fn nothing_else_is_an_address() {
        for uri in ["", "sandbox:", "sandbox://", "sandbox://x", "file:///etc/passwd", "sandbox:///etc/passwd"] {
            assert!(parse(uri).is_err(), "{uri:?} was taken");
        }
    }
}
