//! One blob from a registry to the store, over as many connections as it takes.

use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};

use super::client::{Client, header};
use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::store::{Begun, Download, Writing};
use crate::work::Work;

/// How often in a row a connection may break without a single byte.
const MOST_FAILURES: u32 = 5;

impl Client<'_> {
    /// Brings a blob to the store. What came before a connection broke is not fetched again, by this process or the next.
    pub async fn fetch(&self, writing: &Writing, descriptor: &Descriptor, work: &Work) -> Result<()> {
        let mut again = true;
        loop {
            let mut download = match writing.begin_download(descriptor)? {
                Begun::Finished => {
                    work.progress.advance(descriptor.size);
                    return Ok(());
                }
                Begun::Busy => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Begun::Download(download) => download,
            };
            let continued = download.received() > 0;
            work.progress.advance(download.received());
            match self.fill(&mut download, descriptor, work).await {
                Ok(()) => {}
                // Later may help, and then what has come is of use.
                Err(error @ Error::Unavailable(_)) if download.received() > 0 => return Err(error),
                Err(error) => {
                    writing.abandon_download(*download);
                    return Err(error);
                }
            }
            match writing.finish_download(*download) {
                // What another process left may be what is wrong with it.
                Err(Error::Refused(_)) if continued && again => again = false,
                finished => return finished,
            }
        }
    }

    async fn fill(&self, download: &mut Download, descriptor: &Descriptor, work: &Work) -> Result<()> {
        let mut failures = 0;
        while download.missing() > 0 {
            let before = download.received();
            match self.fetch_once(download, descriptor, work).await {
                Ok(()) => {}
                Err(error @ Error::Unavailable(_)) => {
                    failures = if download.received() > before { 1 } else { failures + 1 };
                    if failures > MOST_FAILURES {
                        return Err(error);
                    }
                    tokio::time::sleep(Duration::from_millis(100 << failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn fetch_once(&self, download: &mut Download, descriptor: &Descriptor, work: &Work) -> Result<()> {
        let address = self.address(&format!("blobs/{}", descriptor.digest.qualified()))?;
        let start = download.received();
        let range = (start > 0).then(|| (RANGE, format!("bytes={start}-")));
        let mut answer = self.get(&address, range.as_slice()).await?;
        match answer.response.status() {
            StatusCode::OK => download.restart()?,
            StatusCode::PARTIAL_CONTENT if continues_at(header(&answer, CONTENT_RANGE), start) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if start > 0 => {
                download.restart()?;
                return Err(Error::Unavailable("the registry does not go on where it was asked to".to_owned()));
            }
            _ => return Err(self.refusal(answer, &format!("layer {}", descriptor.digest.qualified())).await),
        }
        let announced = header(&answer, CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        if announced.is_some_and(|announced| announced != download.missing()) {
            let (size, registry) = (descriptor.size, self.registry());
            return Err(Error::Refused(format!("the registry {registry} has other than the announced {size} bytes")));
        }
        while let Some(part) = self.connections.read(&mut answer).await? {
            download.write(&part)?;
            work.progress.advance(part.len() as u64);
        }
        if download.missing() > 0 {
            return Err(Error::Unavailable(format!("the registry {} stopped in the middle", self.registry())));
        }
        self.connections.finish(answer);
        Ok(())
    }
}

fn continues_at(range: Option<&str>, start: u64) -> bool {
    range
        .and_then(|range| range.strip_prefix("bytes ")?.split_once('-'))
        .is_some_and(|(from, _)| from.parse() == Ok(start))
}
