//! Addresses of what can be read: files of sandboxes and outputs of jobs.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use sandbox::{Error, GuestPath, JobId, Result, SandboxId};

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
pub const OUTPUT_TEMPLATE: &str = "job://{job_id}/{stream}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

pub fn output(id: &JobId, stream: OutputStream) -> String {
    format!("job://{id}/{}", stream.as_str())
}

pub fn file(id: &SandboxId, path: &GuestPath) -> String {
    format!("sandbox://{id}{}", percent_encode(path.as_bytes(), ESCAPED))
}

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By the sandbox's id or its own name.
    File {
        sandbox: String,
        path: GuestPath,
    },
    Output {
        id: JobId,
        stream: OutputStream,
    },
}

pub fn parse(uri: &str) -> Result<Named> {
    let wrong = || {
        Error::not_found("there is no such resource")
            .with_hint("addresses look like sandbox://SANDBOX_ID/workspace/file.txt or job://JOB_ID/stdout")
    };
    let (scheme, rest) = uri.split_once("://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').ok_or_else(wrong)?;
    match scheme {
        "sandbox" => {
            let path: Vec<u8> = percent_decode_str(path).collect();
            if authority.is_empty() {
                return Err(wrong());
            }
            Ok(Named::File { sandbox: authority.to_owned(), path: GuestPath::resolve(&GuestPath::root(), &path)? })
        }
        "job" => Ok(Named::Output {
            id: authority.parse().map_err(|_| wrong())?,
            stream: OutputStream::ALL.into_iter().find(|stream| stream.as_str() == path).ok_or_else(wrong)?,
        }),
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
            assert_eq!(parse(&uri).unwrap(), Named::File { sandbox: id.to_string(), path });
        }
    }

    #[test]
    fn an_address_leads_back_to_its_output() {
        let id = JobId::random().unwrap();
        for stream in OutputStream::ALL {
            assert_eq!(parse(&output(&id, stream)).unwrap(), Named::Output { id: id.clone(), stream });
        }
        assert!(parse(&format!("job://{id}/stdin")).is_err());
    }

    #[test]
    fn nothing_else_is_an_address() {
        for uri in ["", "sandbox:", "sandbox://", "sandbox://x", "file:///etc/passwd", "sandbox:///etc/passwd"] {
            assert!(parse(uri).is_err(), "{uri:?} was taken");
        }
    }
}
