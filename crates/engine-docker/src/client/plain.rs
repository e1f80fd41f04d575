//! Questions without the library: it speaks Docker's language only, and keeps of a refusal no more than its words.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::connect::Endpoint;

const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: u64 = 1 << 20;

/// The whole answer to a request without a body. Without keeping the connection there is nothing to HTTP.
pub(super) async fn ask(endpoint: &Endpoint, method: &str, target: &str) -> std::io::Result<Vec<u8>> {
    let question = format!("{method} {target} HTTP/1.0\r\nHost: daemon\r\nConnection: close\r\n\r\n");
    let answer = async {
        match endpoint {
            #[cfg(unix)]
            Endpoint::Local(path) => asked(tokio::net::UnixStream::connect(path).await?, &question).await,
            #[cfg(windows)]
            Endpoint::Local(path) => {
                asked(tokio::net::windows::named_pipe::ClientOptions::new().open(path)?, &question).await
            }
            Endpoint::Plain { address } => asked(tokio::net::TcpStream::connect(address).await?, &question).await,
            // Podman's own service has none; who put one before it can name the place behind it.
            Endpoint::Tls { .. } => Err(std::io::ErrorKind::Unsupported.into()),
        }
    };
    tokio::time::timeout(PATIENCE, answer).await?
}

async fn asked(mut stream: impl AsyncRead + AsyncWrite + Unpin, question: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(question.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The lines before the body, and the body.
pub(super) fn parts(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]))
}
