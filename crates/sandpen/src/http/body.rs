//! Request bodies as a whole, with bounds on their size, on their time, and on the memory of all of them together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use sandbox::ByteSize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// Memory is reserved in such steps, so that a body that is announced as large and never sent holds little.
const STEP: usize = 64 << 10;

/// So many of the largest bodies may be in memory at once.
const LARGEST_AT_ONCE: usize = 4;

/// Between two pieces.
const PATIENCE: Duration = Duration::from_secs(30);

/// For all of it: whoever sends a byte now and then is not idle, but holds a connection all the same.
const LONGEST: Duration = Duration::from_secs(300);

/// What is read and thrown away after a body turned out not to be wanted, because a client that is still sending does
/// not read the answer before it is done.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Bodies {
    largest: usize,
    room: Arc<Semaphore>,
}

/// A body and its place in memory, which is free again when this is dropped.
#[derive(Debug)]
pub struct Whole {
    pub bytes: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    TooLarge,
    /// Others are using the memory.
    NoRoom,
    TooSlow,
    /// The client went away, or its framing is wrong.
    Broken,
}

impl Bodies {
    pub fn new(largest: ByteSize) -> Self {
        let largest = usize::try_from(largest.bytes()).unwrap_or(usize::MAX / 8);
        Self { largest, room: Arc::new(Semaphore::new((largest / STEP + 1) * LARGEST_AT_ONCE)) }
    }

    pub async fn read(&self, mut body: Body) -> Result<Whole, Unread> {
        let read = self.collect(&mut body).await;
        if let Err(Unread::TooLarge | Unread::NoRoom) = read {
            farewell(body).await;
        }
        read
    }

    async fn collect(&self, body: &mut Body) -> Result<Whole, Unread> {
        let end = Instant::now() + LONGEST;
        let mut bytes = BytesMut::new();
        let mut place: Option<OwnedSemaphorePermit> = None;
        loop {
            let frame = timeout_at(end, timeout(PATIENCE, body.frame())).await;
            let Ok(Ok(frame)) = frame else { return Err(Unread::TooSlow) };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
            if data.len() > self.largest - bytes.len() {
                return Err(Unread::TooLarge);
            }
            let held = place.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let needed = (bytes.len() + data.len()).div_ceil(STEP) - held;
            if needed > 0 {
                let needed = u32::try_from(needed).map_err(|_| Unread::TooLarge)?;
                let more = self.room.clone().try_acquire_many_owned(needed).map_err(|_| Unread::NoRoom)?;
                match &mut place {
                    Some(place) => place.merge(more),
                    None => place = Some(more),
                }
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Whole { bytes: bytes.freeze(), _place: place })
    }
}

/// Read what is still sent of a body that is not wanted, for a moment.
pub async fn farewell(body: Body) {
    // What comes of it does not matter.
    let _ = timeout(FAREWELL, discard(body)).await;
}

async fn discard(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Bodies {
        Bodies::new(ByteSize::new(3 * STEP as u64))
    }

    fn pieces(sizes: &[usize]) -> Body {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; *size]))).collect();
        Body::from_stream(tokio_stream::iter(pieces))
    }

    #[tokio::test]
    async fn a_body_of_the_largest_size_is_read_and_one_byte_more_is_not() {
        let bodies = bodies();
        let whole = bodies.read(pieces(&[STEP, 2 * STEP])).await.unwrap();
        assert_eq!(whole.bytes.len(), 3 * STEP);
        assert_eq!(bodies.read(pieces(&[STEP, 2 * STEP, 1])).await.unwrap_err(), Unread::TooLarge);
    }

    #[tokio::test]
    async fn memory_is_bounded_over_all_bodies_and_given_back() {
        let bodies = bodies();
        let free = bodies.room.available_permits();
        let mut held = Vec::new();
        while let Ok(whole) = bodies.read(pieces(&[1, STEP, STEP])).await {
            held.push(whole);
        }
        assert_eq!(held.len(), free / 3);
        assert_eq!(bodies.read(pieces(&[3 * STEP])).await.unwrap_err(), Unread::NoRoom);
        held.clear();
        assert_eq!(bodies.room.available_permits(), free);
        assert!(bodies.read(pieces(&[3 * STEP])).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_or_trickles_is_given_up() {
        let stalled = Body::from_stream(tokio_stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(bodies().read(stalled).await.unwrap_err(), Unread::TooSlow);

        let trickle = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        assert_eq!(bodies().read(Body::from_stream(trickle)).await.unwrap_err(), Unread::TooSlow);
    }
}
