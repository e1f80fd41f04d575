//! A fault of ours is an answer, not an end: a request that panics is told so, and the next one is served.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use rmcp::model::ErrorData;

pub async fn guarded<T>(work: impl Future<Output = Result<T, ErrorData>>) -> Result<T, ErrorData> {
    // Nothing that the work shares is left half changed by a panic: the service guards itself, and the rest is dropped.
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a request came upon a fault of ours, which was told before");
        Err(ErrorData::internal_error("the server came upon a fault of its own (internal)", None))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_internal_error() {
        let work = async {
            tokio::task::yield_now().await;
            if std::hint::black_box(true) {
                panic!("this panic is part of the test");
            }
            Ok(7)
        };
        assert_eq!(guarded(work).await.unwrap_err().code.0, -32603);
        assert_eq!(guarded(async { Ok(7) }).await.unwrap(), 7);
    }
}
