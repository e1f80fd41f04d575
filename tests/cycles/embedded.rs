//! On the embedded engine, where everything is below this process.

use std::time::{Duration, Instant};

use sandpen_tests::census::{Census, adopt_orphans};
use sandpen_tests::lab::Lab;
use sandpen_tests::{Result, number_from};

use crate::{AT_ONCE, Counted, Like, round};

/// Pools fill and caches warm up in these, before anything is counted.
const WARM_UP: u64 = 50;

pub(crate) async fn cycles(spares: usize, like: &Like) -> Result<Counted> {
    adopt_orphans()?;
    let cycles = number_from("SANDPEN_TEST_CYCLES", 1000);
    let lab = Lab::with_spares(&[], spares).await?;
    let scope = lab.scope();
    for _ in 0..WARM_UP / AT_ONCE {
        round(&*lab.engine, like).await?;
    }
    // Until there are as many spares as there will be.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = Census::take(&scope);
    let started = Instant::now();
    for _ in 0..cycles.div_ceil(AT_ONCE) {
        round(&*lab.engine, like).await?;
    }
    let took = started.elapsed();
    let leaks = before.leaks_within(&scope, Duration::from_secs(5));
    let grown_kib = Census::take(&scope).memory_kib.saturating_sub(before.memory_kib);
    Ok(Counted { cycles, took, leaks, grown_kib, classes: before.classes() })
}
