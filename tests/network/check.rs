//! A check of the way out, run twice: with its rule it must hold, without it it must turn red.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use egress::Rule;
use sandbox::Layer;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding};
use sandpen_tests::table::{Table, Verdict};

use crate::scene::{Scene, Weakness};

/// How a check is seen to fail.
#[derive(Clone, Copy, Debug)]
pub enum Control {
    /// The same check with a gateway that has forgotten these rules.
    Forgetting(&'static [Rule]),
    /// The same check in a sandbox without these walls; where somebody else builds them, the instrument.
    Without(&'static [Layer]),
    /// The same probe and the same judgement where nothing protects.
    Instrument,
}

impl Control {
    fn weakness(self) -> Option<Weakness> {
        match self {
            Self::Forgetting(rules) => Some(Weakness { rules: rules.iter().copied().collect(), ..Weakness::default() }),
            Self::Without(layers) => Some(Weakness { layers: layers.to_vec(), ..Weakness::default() }),
            Self::Instrument => None,
        }
    }
}

#[async_trait]
pub trait Check: Sync {
    fn about(&self) -> About;

    fn controls(&self) -> Vec<Control>;

    async fn run(&self, scene: &Scene) -> Result<Finding>;

    /// For [`Control::Instrument`], and for walls that cannot be left out.
    async fn instrument(&self, _scene: &Scene) -> Result<Finding> {
        Err("this check has no instrument".into())
    }
}

/// The longest that one run of a check may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Run one check with its controls and add its row.
pub async fn judge(check: &dyn Check, scene: &Scene, table: &mut Table) {
    let started = Instant::now();
    let (verdict, detail) = verdict(check, scene).await;
    table.add(check.about().id, verdict, &detail, started.elapsed());
}

async fn verdict(check: &dyn Check, scene: &Scene) -> (Verdict, String) {
    let detail = match bounded(check.run(scene)).await {
        Ok(Finding::Holds(detail)) => detail,
        Ok(Finding::Breach(detail)) => return (Verdict::Fail, detail),
        Ok(Finding::Skip(why)) => return (Verdict::Skip, why),
        Err(trouble) => return (Verdict::Fail, format!("it could not run: {trouble}")),
    };
    for control in check.controls() {
        let name = format!("{control:?}");
        let found = match control.weakness().filter(|weakness| scene.can_be(weakness)) {
            None => bounded(check.instrument(scene)).await,
            Some(weakness) => weakened(check, scene, &weakness).await,
        };
        match found {
            Ok(Finding::Breach(_)) => {}
            Ok(Finding::Holds(_)) => return (Verdict::Void, format!("{name}: it stays green")),
            Ok(Finding::Skip(why)) => return (Verdict::Void, format!("{name}: it is skipped: {why}")),
            Err(trouble) => return (Verdict::Void, format!("{name}: it could not run: {trouble}")),
        }
    }
    (Verdict::Pass, detail)
}

async fn weakened(check: &dyn Check, scene: &Scene, weakness: &Weakness) -> Result<Finding> {
    let scene = scene.weakened(weakness).await?;
    bounded(check.run(&scene)).await
}

async fn bounded(run: impl Future<Output = Result<Finding>>) -> Result<Finding> {
    match tokio::time::timeout(LIMIT, run).await {
        Ok(found) => found,
        Err(_) => Err(format!("no answer in {} s", LIMIT.as_secs()).into()),
    }
}
