//! A check of a wall, run twice: with the wall it must hold, without it it must turn red.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox::Layer;

use crate::Result;
use crate::lab::{Lab, is_on_daemon, missing};
use crate::table::{Table, Verdict};

/// What a check is, as its table in the documents shows it.
#[derive(Clone, Copy, Debug)]
pub struct About {
    pub id: &'static str,
    pub tries: &'static str,
    pub stopped_by: &'static str,
}

/// How a check is seen to fail.
#[derive(Clone, Copy, Debug)]
pub enum Control {
    /// The same check in a sandbox without these walls.
    Without(&'static [Layer]),
    /// The same probe and the same judgement where nothing protects: on the host, or with the damage done by hand.
    Instrument,
}

#[derive(Clone, Debug)]
pub enum Finding {
    Holds(String),
    Breach(String),
    Skip(String),
}

impl Finding {
    /// A breach when there is any, told in a line that can still be read.
    pub fn from_breaches(breaches: &[String], otherwise: impl Into<String>) -> Self {
        if breaches.is_empty() { Self::Holds(otherwise.into()) } else { Self::Breach(shortened(breaches)) }
    }
}

/// The first of many lines, and how many more there are.
pub fn shortened(lines: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = lines.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if lines.len() > SHOWN {
        text += &format!("; and {} more", lines.len() - SHOWN);
    }
    text
}

#[async_trait]
pub trait Check: Sync {
    fn about(&self) -> About;

    fn controls(&self) -> Vec<Control>;

    /// Walls without which the check has no meaning; it is skipped on a host that cannot build them.
    fn needs(&self) -> Vec<Layer> {
        let of_control = |control: Control| match control {
            Control::Without(layers) => layers.to_vec(),
            Control::Instrument => Vec::new(),
        };
        self.controls().into_iter().flat_map(of_control).collect()
    }

    /// Why it says nothing of sandboxes that a daemon makes; `None` where it does.
    fn embedded_only(&self) -> Option<&'static str> {
        None
    }

    async fn run(&self, lab: &Lab) -> Result<Finding>;

    /// For [`Control::Instrument`].
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        Err("this check has no instrument".into())
    }
}

/// The longest that one run of a check may take.
const LIMIT: Duration = Duration::from_secs(180);

/// Run one check with its controls and add its row.
pub async fn judge(check: &dyn Check, lab: &Lab, table: &mut Table) {
    let started = Instant::now();
    let (verdict, detail) = verdict(check, lab).await;
    table.add(check.about().id, verdict, &detail, started.elapsed());
}

async fn verdict(check: &dyn Check, lab: &Lab) -> (Verdict, String) {
    if is_on_daemon()
        && let Some(why) = check.embedded_only()
    {
        return (Verdict::Skip, why.to_owned());
    }
    let missing = missing();
    if let Some(layer) = check.needs().into_iter().find(|layer| missing.contains(layer)) {
        return (Verdict::Skip, format!("{} {layer}", builder_cannot()));
    }
    let detail = match bounded(check.run(lab)).await {
        Ok(Finding::Holds(detail)) => detail,
        Ok(Finding::Breach(detail)) => return (Verdict::Fail, detail),
        Ok(Finding::Skip(why)) => return (Verdict::Skip, why),
        Err(trouble) => return (Verdict::Fail, format!("it could not run: {trouble}")),
    };
    for control in check.controls() {
        let (name, found) = match control {
            Control::Instrument => ("with nothing in the way".to_owned(), bounded(check.instrument(lab)).await),
            Control::Without(layers) => {
                let names: Vec<&str> = layers.iter().map(|layer| layer.as_str()).collect();
                (format!("without {}", names.join(" and ")), weakened(check, layers).await)
            }
        };
        match found {
            Ok(Finding::Breach(_)) => {}
            Ok(Finding::Holds(_)) => return (Verdict::Void, format!("it stays green {name}")),
            Ok(Finding::Skip(why)) => return (Verdict::Void, format!("{name} it is skipped: {why}")),
            Err(trouble) => return (Verdict::Void, format!("{name} it could not run: {trouble}")),
        }
    }
    (Verdict::Pass, detail)
}

/// Who it is that cannot build a wall.
pub fn builder_cannot() -> &'static str {
    if is_on_daemon() { "this daemon does not build" } else { "this host cannot build" }
}

async fn weakened(check: &dyn Check, layers: &[Layer]) -> Result<Finding> {
    let lab = Lab::start(layers).await?;
    bounded(check.run(&lab)).await
}

async fn bounded(run: impl Future<Output = Result<Finding>>) -> Result<Finding> {
    // A daemon takes seconds where the embedded engine takes milliseconds.
    let limit = if is_on_daemon() { LIMIT * 3 } else { LIMIT };
    match tokio::time::timeout(limit, run).await {
        Ok(found) => found,
        Err(_) => Err(format!("no answer in {} s", limit.as_secs()).into()),
    }
}
