//! Which way of writing a sandbox down is kept: the most readable one that makes all of it, or else the one that makes most.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::{Error, GuestPath, History, Owner, Result, SandboxInfo};
use tokio_util::sync::CancellationToken;
use tools::Progress;
use tools::export::{Check, Outcome};

use super::Exports;
use super::base::Base;
use super::packages::Installed;
use super::recipe::{self, Choice, Step, Survivor};
use super::render::{self, Draft, Rendered};
use super::scratch::Scratch;
use super::verify::{Attempt, Verified};

/// After as much time no commands are done again any more; to copy what they left takes none.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Paths that are named in a note.
const NAMED: usize = 10;

/// A way to make the sandbox anew, the most readable one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Chosen(Choice),
    /// The best one so far, with what it makes differently copied after it.
    Corrected,
}

const WAYS: [Way; 5] = [
    Way::Chosen(Choice::Effective),
    Way::Chosen(Choice::Successful),
    Way::Chosen(Choice::All),
    Way::Corrected,
    Way::Chosen(Choice::Nothing),
];

/// What all ways have in common.
pub struct Attempts<'a> {
    pub exports: &'a Exports,
    pub owner: &'a Owner,
    pub sandbox: &'a SandboxInfo,
    pub check: &'a Check,
    pub base: Arc<Base>,
    pub history: Arc<History>,
    pub survivors: Vec<Survivor>,
    pub programs: Arc<BTreeSet<String>>,
    pub packages: Vec<Installed>,
    pub progress: &'a Arc<dyn Progress>,
    pub cancel: &'a CancellationToken,
}

/// One of them, written down.
pub struct Kept {
    pub rendered: Rendered,
    pub context: Scratch,
    pub outcome: Outcome,
    /// How often something was built to find it.
    pub builds: u32,
    /// Why it is not the one that a reader would expect.
    pub notes: Vec<String>,
    steps: Vec<Step>,
}

impl Attempts<'_> {
    /// Each way is built until one makes everything.
    pub async fn best(&self) -> Result<Kept> {
        let started = Instant::now();
        let mut tried: Vec<Vec<Step>> = Vec::new();
        let mut kept: Option<Kept> = None;
        let mut troubles = Vec::new();
        // A daemon builds outside of the walls of sandboxes, so nothing that was run in one is run there.
        let ways = if self.base.daemon.is_some() { &WAYS[WAYS.len() - 1..] } else { &WAYS[..] };
        for &way in ways {
            if started.elapsed() > PATIENCE && way != Way::Chosen(Choice::Nothing) {
                continue;
            }
            let Some(steps) = self.steps(way, kept.as_ref()).filter(|steps| !tried.contains(steps)) else { continue };
            tried.push(steps.clone());
            let (rendered, context) = self.render(&steps).await?;
            let verified = match self.check {
                Check::Skip(why) => Verified::Outcome(Outcome::NotChecked(why.clone())),
                Check::Rebuild => self.build(&rendered, &context).await?,
            };
            let (outcome, is_final) = match verified {
                Verified::Failed(why) => (Outcome::NotBuilt(why), false),
                Verified::Outcome(outcome) => {
                    let is_final =
                        !matches!(&outcome, Outcome::Compared { differences, .. } if !differences.is_empty());
                    (outcome, is_final)
                }
            };
            let is_better = kept.as_ref().is_none_or(|kept| is_better(&outcome, &kept.outcome));
            let notes = notes(way, &troubles, kept.as_ref());
            troubles.extend(trouble(&outcome));
            if is_better {
                kept = Some(Kept { rendered, context, outcome, builds: 0, notes, steps });
            }
            if is_final {
                break;
            }
        }
        let builds = match self.check {
            Check::Skip(_) => 0,
            Check::Rebuild => u32::try_from(tried.len()).unwrap_or(u32::MAX),
        };
        kept.map(|kept| Kept { builds, ..kept }).ok_or_else(|| Error::internal("an export ended without a result"))
    }

    /// `None` when there is no such way.
    fn steps(&self, way: Way, kept: Option<&Kept>) -> Option<Vec<Step>> {
        match way {
            Way::Chosen(choice) => Some(recipe::steps(&self.history.entries, &self.survivors, choice)),
            Way::Corrected => match kept {
                Some(Kept { outcome: Outcome::Compared { differences, more: 0, .. }, steps, .. }) => {
                    Some(recipe::corrected(steps, differences, &self.survivors))
                }
                Some(_) | None => None,
            },
        }
    }

    async fn render(&self, steps: &[Step]) -> Result<(Rendered, Scratch)> {
        let context = Scratch::new(&self.exports.directory)?;
        let draft = Draft {
            base: Arc::clone(&self.base),
            history: Arc::clone(&self.history),
            steps: steps.to_vec(),
            runners: self.exports.service.runners().clone(),
            programs: Arc::clone(&self.programs),
            packages: self.packages.clone(),
        };
        let (store, path, giving_up) =
            (Arc::clone(&self.exports.store), context.path().to_owned(), self.cancel.clone());
        let rendering = tokio::task::spawn_blocking(move || render::render(&store, &draft, &path, &giving_up));
        let rendered = rendering
            .await
            .map_err(|cause| Error::internal("writing an export ended unexpectedly").with_cause(cause))??;
        Ok((rendered, context))
    }

    async fn build(&self, rendered: &Rendered, context: &Scratch) -> Result<Verified> {
        let Self { owner, sandbox, base, progress, .. } = self;
        let attempt = Attempt { owner, sandbox, base, rendered, context: context.path(), progress };
        self.exports.verifier.verify(&attempt, self.cancel).await
    }
}

/// On a tie the earlier one is kept, which says more; among those that do not build the later one, which does less.
fn is_better(outcome: &Outcome, than: &Outcome) -> bool {
    let count = |outcome: &Outcome| match outcome {
        Outcome::Compared { differences, more, .. } => Some(differences.len() as u64 + more),
        Outcome::NotBuilt(_) | Outcome::NotChecked(_) => None,
    };
    match (count(outcome), count(than)) {
        (Some(one), Some(other)) => one < other,
        (Some(_), None) | (None, None) => true,
        (None, Some(_)) => false,
    }
}

/// What was wrong with a way.
fn trouble(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::NotBuilt(why) => Some(why.clone()),
        Outcome::Compared { differences, .. } => {
            let first = differences.first()?;
            Some(format!("{} {}", first.path, first.what.words()))
        }
        Outcome::NotChecked(_) => None,
    }
}

/// What a reader should know of a way that was not the first.
fn notes(way: Way, troubles: &[String], before: Option<&Kept>) -> Vec<String> {
    let instead = |what: &str| {
        let tell =
            |first| format!("the commands that changed files do not make all of them again ({first}), so {what}");
        troubles.first().map(tell).into_iter().collect()
    };
    match (way, before) {
        (Way::Chosen(Choice::Effective), _) | (Way::Corrected, None) => Vec::new(),
        (Way::Chosen(Choice::Successful | Choice::All), _) => instead("others that succeeded are done again too"),
        (Way::Chosen(Choice::Nothing), _) => instead("what they left is copied"),
        (Way::Corrected, Some(Kept { outcome, notes, .. })) => {
            let mut notes = notes.clone();
            if let Outcome::Compared { differences, .. } = outcome {
                let paths: Vec<&GuestPath> = differences.iter().map(|one| &one.path).collect();
                notes.push(format!(
                    "commands do not make these the same each time, so they are put right at the end: {}",
                    listed(&paths)
                ));
            }
            notes
        }
    }
}

fn listed(paths: &[&GuestPath]) -> String {
    let named: Vec<String> = paths.iter().take(NAMED).map(ToString::to_string).collect();
    match paths.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use tools::export::{Difference, What};

    use super::*;

    fn differs(count: usize) -> Outcome {
        let one = Difference { path: GuestPath::workspace(), what: What::Contents };
        Outcome::Compared { same: 7, differences: vec![one; count], more: 0 }
    }

    #[test]
    fn the_fewest_differences_win_and_a_tie_goes_to_the_earlier() {
        let fails = || Outcome::NotBuilt("it fails".to_owned());
        assert!(is_better(&differs(1), &differs(2)) && !is_better(&differs(2), &differs(1)));
        assert!(!is_better(&differs(1), &differs(1)));
        assert!(is_better(&differs(9), &fails()) && !is_better(&fails(), &differs(9)));
        assert!(is_better(&fails(), &fails()), "what does less is more likely to build elsewhere");
    }

    #[test]
    fn few_paths_are_named_and_the_rest_is_counted() {
        let path = GuestPath::workspace();
        assert_eq!(listed(&[&path]), "/workspace");
        assert!(listed(&[&path; NAMED + 2]).ends_with("/workspace and 2 more"));
    }
}
