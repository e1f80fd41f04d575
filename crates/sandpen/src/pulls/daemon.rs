//! The same where a daemon does the fetching: what it says of each layer, added up for whoever watches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use engine_docker::{DockerEngine, PullProgress};
use images::{Progress as Watcher, Step};
use sandbox::{Error, ImageName, Result};
use tools::{ImageSource, Progress};

use super::News;

/// Images that a daemon fetches because a call asked for them.
#[derive(Debug)]
pub struct DaemonPulls(pub Arc<DockerEngine>);

#[async_trait]
impl ImageSource for DaemonPulls {
    async fn provide(&self, name: &ImageName, progress: &Arc<dyn Progress>) -> Result<()> {
        let news = News::new(name.to_string(), progress);
        let (engine, name, tally) = (Arc::clone(&self.0), name.clone(), Tally::new(Arc::new(news)));
        // On its own: a caller that does not wait so long finds the image when it asks again.
        let pulling = tokio::spawn(async move { engine.provide(&name, &|said| tally.hear(&said)).await });
        pulling.await.map_err(|cause| Error::internal("a pull ended unexpectedly").with_cause(cause))?
    }
}

/// How far a pull is as a whole.
#[derive(Debug)]
pub struct Tally {
    to: Arc<dyn Watcher>,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// What has come of each layer, and what there is of it.
    layers: HashMap<String, (u64, u64)>,
    step: Option<Step>,
    told: u64,
}

impl Tally {
    pub fn new(to: Arc<dyn Watcher>) -> Self {
        Self { to, heard: Mutex::default() }
    }

    pub fn hear(&self, said: &PullProgress) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = &said.layer {
            match (said.status.as_str(), said.bytes) {
                ("Downloading", Some(bytes)) => _ = heard.layers.insert(layer.clone(), bytes),
                ("Pulling fs layer" | "Waiting" | "Downloading", _) => {}
                // Whatever follows comes when all of it is there.
                _ => {
                    if let Some((done, total)) = heard.layers.get_mut(layer) {
                        *done = *total;
                    }
                }
            }
        }
        let (done, total) = heard.layers.values().fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1));
        let step = match (total, done < total) {
            (0, _) => Step::Asking,
            (_, true) => Step::Downloading,
            (_, false) => Step::Unpacking,
        };
        if heard.step.replace(step) != Some(step) {
            self.to.step(step);
        }
        self.to.total(total);
        if done > heard.told {
            self.to.advance(done - heard.told);
            heard.told = done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Notes(Mutex<(Vec<Step>, u64, u64)>);

    impl Watcher for Notes {
        fn step(&self, step: Step) {
            self.0.lock().unwrap().0.push(step);
        }

        fn total(&self, bytes: u64) {
            self.0.lock().unwrap().1 = bytes;
        }

        fn advance(&self, bytes: u64) {
            self.0.lock().unwrap().2 += bytes;
        }
    }

    #[test]
    fn layers_add_up() {
        let notes = Arc::new(Notes::default());
        let tally = Tally::new(notes.clone());
        let hear = |layer: &str, status: &str, bytes: Option<(u64, u64)>| {
            tally.hear(&PullProgress { status: status.to_owned(), layer: Some(layer.to_owned()), bytes });
        };
        hear("1", "Pulling from library/debian", None);
        hear("a", "Pulling fs layer", None);
        hear("a", "Downloading", Some((10, 100)));
        hear("b", "Downloading", Some((50, 50)));
        assert_eq!(*notes.0.lock().unwrap(), (vec![Step::Asking, Step::Downloading], 150, 60));
        hear("c", "Already exists", None);
        hear("a", "Download complete", None);
        hear("a", "Extracting", Some((1, 100)));
        let expected = vec![Step::Asking, Step::Downloading, Step::Unpacking];
        assert_eq!(*notes.0.lock().unwrap(), (expected, 150, 150));
    }
}
