//! The image of a stage as it grows: layers, configuration, and how it came about.

use images::{Descriptor, Digest, ImageConfig};
use serde_json::{Value, json};

use super::metadata::Settings;

#[derive(Clone, Debug)]
pub struct StageImage {
    /// Of the base, for all that builds do not change.
    base: ImageConfig,
    pub settings: Settings,
    /// The lowest first, with its digest when it is not compressed.
    pub layers: Vec<(Digest, Descriptor)>,
    history: Vec<Value>,
    /// When the last layer was made, if that is known. What changes no file happens at that time too, so that a build in
    /// which every layer is known gives the image that it gave before.
    created: Option<String>,
}

impl StageImage {
    /// From nothing.
    pub fn scratch() -> Self {
        Self {
            base: ImageConfig::bare(Vec::new()),
            settings: Settings::of_nothing(),
            layers: Vec::new(),
            history: Vec::new(),
            created: None,
        }
    }

    pub fn of_image(config: ImageConfig, layers: Vec<Descriptor>) -> Self {
        let layers = config.rootfs.diff_ids.iter().copied().zip(layers).collect();
        let settings = Settings::of_base(config.config.clone());
        let (history, created) = (config.history.clone(), config.created.clone());
        Self { base: config, settings, layers, history, created }
    }

    /// A stage that starts where another ended.
    #[must_use]
    pub fn continued(&self) -> Self {
        Self { settings: self.settings.continued(), ..self.clone() }
    }

    /// A step that made this layer, at this time.
    pub fn add_layer(&mut self, layer: (Digest, Descriptor), step: &str, at: &str) {
        self.layers.push(layer);
        self.created = Some(at.to_owned());
        self.history.push(json!({"created": at, "created_by": step, "comment": COMMENT}));
    }

    /// A step that made none.
    pub fn add_word(&mut self, step: &str) {
        let mut entry = json!({"created_by": step, "comment": COMMENT, "empty_layer": true});
        if let Some(at) = &self.created {
            entry["created"] = at.clone().into();
        }
        self.history.push(entry);
    }

    pub fn config(&self) -> ImageConfig {
        let mut config = self.base.clone();
        config.config = self.settings.config.clone();
        config.created.clone_from(&self.created);
        if let Some(author) = &self.settings.author {
            config.other.insert("author".to_owned(), author.clone().into());
        }
        config.rootfs.diff_ids = self.layers.iter().map(|(diff_id, _)| *diff_id).collect();
        config.history.clone_from(&self.history);
        config
    }

    pub fn blobs(&self) -> Vec<Descriptor> {
        self.layers.iter().map(|(_, blob)| blob.clone()).collect()
    }
}

const COMMENT: &str = "sandpen image build";
