//! Single files out of layers, as streams.

use std::collections::BTreeSet;
use std::io::{self, Read};

use tokio_util::sync::CancellationToken;

use super::tree::{Origin, plain};
use crate::error::{Error, Result};
use crate::meter::Stream;
use crate::store::{ImageLayer, Store};
use crate::unpack::Limits;

/// Hands over the contents of these files, in the order in which they lie there. What `take` does not read is passed over.
pub fn pick(
    store: &Store,
    layers: &[ImageLayer],
    wanted: &BTreeSet<Origin>,
    cancel: &CancellationToken,
    take: &mut dyn FnMut(&Origin, &mut dyn Read, u64) -> Result<()>,
) -> Result<()> {
    for (number, layer) in layers.iter().enumerate() {
        if !wanted.iter().any(|origin| origin.layer == number) {
            continue;
        }
        let blob = io::BufReader::new(store.open_blob(layer.blob.digest)?);
        let mut stream = Stream::new(blob, Limits::default().ratio)?;
        let meter = stream.meter();
        let mut archive = tar::Archive::new(&mut stream);
        let mut entries = archive.entries().map_err(|error| meter.explain(error))?;
        loop {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            meter.expect_header();
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(|error| meter.explain(error))?;
            let size = entry.size();
            meter.expect_contents(size);
            let origin = Origin { layer: number, path: plain(&entry.path_bytes()) };
            if entry.header().entry_type().is_file() && wanted.contains(&origin) {
                take(&origin, &mut entry, size)?;
            }
            // What is passed over is contents all the same, and no part of the next header.
            io::copy(&mut entry, &mut io::sink()).map_err(|error| meter.explain(error))?;
        }
    }
    Ok(())
}
