//! Whether somebody waits for a sandbox right now. A daemon makes containers one after the other, more or less, so spares are
//! made when nobody does.

use std::time::Duration;

use tokio::sync::watch;

/// Whoever just got a sandbox is about to start something in it, and goes first.
const CALM: Duration = Duration::from_millis(50);
/// Where somebody always waits, spares are what would help.
const LONGEST: Duration = Duration::from_secs(10);

/// Copies count the same.
#[derive(Clone, Debug, Default)]
pub struct Demand(watch::Sender<usize>);

/// Somebody who waits.
#[derive(Debug)]
pub struct Waiting(Demand);

impl Demand {
    #[must_use]
    pub fn begin(&self) -> Waiting {
        self.0.send_modify(|count| *count += 1);
        Waiting(self.clone())
    }

    /// Until nobody has waited for a moment.
    pub async fn calm(&self) {
        let calm = async {
            loop {
                // The sender is ours, so it is there.
                let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
                tokio::time::sleep(CALM).await;
                if *self.0.borrow() == 0 {
                    return;
                }
            }
        };
        // It is as good a moment as any.
        let _ = tokio::time::timeout(LONGEST, calm).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_calm_when_the_last_has_gone() {
        let demand = Demand::default();
        let (first, second) = (demand.begin(), demand.begin());
        drop(first);
        let waiting = tokio::time::timeout(CALM * 4, demand.calm()).await;
        assert!(waiting.is_err(), "somebody waits");
        drop(second);
        demand.calm().await;
    }
}
