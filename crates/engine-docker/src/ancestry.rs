//! What a saved image has over the one that it began with, by the paths that may differ.
//!
//! An export wants to say what is new over an image that others can have too. A container's own layer says what is new over the
//! image of that container alone, which may be a saved one. So a save writes down in labels how many layers its first image had,
//! and where anything was changed since. Too many paths do no harm but time, because each is compared; so a long list is
//! shortened by naming the directories above.

use std::collections::HashMap;

use bollard::models::ImageInspect;
use sandbox::GuestPath;

use crate::image::{paths, tree_list};

const FIRST: &str = "org.sandpen.saved.first";
const LAYERS: &str = "org.sandpen.saved.first-layers";
const ALTERED: &str = "org.sandpen.saved.altered";

/// Podman is told labels in an address, where most signs that are no letters take three.
const LONGEST_LIST: usize = 32 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestry {
    /// The first image, as the daemon calls it.
    first: String,
    /// That it had.
    layers: usize,
    /// In byte order, none below another.
    altered: Vec<GuestPath>,
}

impl Ancestry {
    /// Of an image; one that was not saved is its own first.
    pub fn of(image: &ImageInspect) -> Self {
        let labels = image.config.as_ref().and_then(|config| config.labels.as_ref());
        let own = layers(image).len();
        let said = labels.and_then(|labels| labels.get(LAYERS)?.parse().ok()).filter(|count| (1..=own).contains(count));
        match said {
            Some(layers) => {
                let first = labels.and_then(|labels| labels.get(FIRST)).cloned().unwrap_or_default();
                Self { first, layers, altered: paths(labels, ALTERED) }
            }
            None => Self { first: image.id.clone().unwrap_or_default(), layers: own, altered: Vec::new() },
        }
    }

    /// With more that may differ.
    pub fn and(self, more: impl IntoIterator<Item = GuestPath>) -> Self {
        Self { altered: tops(self.altered.into_iter().chain(more)), ..self }
    }

    pub fn altered(self) -> Vec<GuestPath> {
        self.altered
    }

    /// Whether this is the first image. Others may have the same layers and say other things of themselves.
    pub fn begins_with(&self, image: &ImageInspect) -> bool {
        image.id.as_ref().is_some_and(|id| *id == self.first)
    }

    /// Whether what is new over `base` is among what may differ: it has all layers of the first image, and none that `image`,
    /// whose ancestry this is, does not have.
    pub fn reaches(&self, image: &ImageInspect, base: &ImageInspect) -> bool {
        let below = layers(base);
        below.len() >= self.layers && layers(image).starts_with(below)
    }

    /// Empty ones where even the shortest list is too long: the image is then its own first, instead of one that lost something.
    pub fn labels(&self) -> HashMap<String, String> {
        let deepest = self.altered.iter().map(|path| path.components().count()).max().unwrap_or(0);
        let shortened = |depth: usize| tree_list(&tops(self.altered.iter().map(|path| at_most(path, depth))));
        let mut lists = (1..=deepest.max(1)).rev().map(shortened);
        let labels = match lists.find(|list| length_in_an_address(list) <= LONGEST_LIST) {
            Some(list) => [(FIRST, self.first.clone()), (LAYERS, self.layers.to_string()), (ALTERED, list)],
            None => [FIRST, LAYERS, ALTERED].map(|label| (label, String::new())),
        };
        labels.map(|(label, value)| (label.to_owned(), value)).into()
    }
}

/// Without those that lie below others.
fn tops(paths: impl IntoIterator<Item = GuestPath>) -> Vec<GuestPath> {
    let mut all: Vec<GuestPath> = paths.into_iter().collect();
    all.sort_by_cached_key(|path| path.components().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let mut tops: Vec<GuestPath> = Vec::new();
    for path in all {
        if !tops.last().is_some_and(|top| top.contains(&path)) {
            tops.push(path);
        }
    }
    tops
}

/// The path, or the directory above it that has so many parts.
fn at_most(path: &GuestPath, depth: usize) -> GuestPath {
    let mut path = path.clone();
    while path.components().count() > depth {
        let Some(above) = path.parent() else { break };
        path = above;
    }
    path
}

fn length_in_an_address(text: &str) -> usize {
    text.bytes().map(|byte| if byte.is_ascii_alphanumeric() { 1 } else { 3 }).sum()
}

pub fn layers(image: &ImageInspect) -> &[String] {
    image.root_fs.as_ref().and_then(|root| root.layers.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bollard::models::{ImageConfig, ImageInspectRootFs};

    use super::*;

    fn image(layers: &[&str], labels: HashMap<String, String>) -> ImageInspect {
        let layers = Some(layers.iter().map(|&layer| layer.to_owned()).collect());
        ImageInspect {
            id: Some(format!("sha256:{}", layers.as_ref().map_or(0, Vec::len))),
            root_fs: Some(ImageInspectRootFs { layers, ..ImageInspectRootFs::default() }),
            config: Some(ImageConfig { labels: Some(labels), ..ImageConfig::default() }),
            ..ImageInspect::default()
        }
    }

    fn path(text: &str) -> GuestPath {
        text.parse().unwrap()
    }

    #[test]
    fn what_a_save_writes_is_read_again() {
        let first = image(&["a", "b"], HashMap::new());
        let saved = Ancestry::of(&first).and(["/etc/odd name", "/usr/bin/tool", "/etc/odd name/below"].map(path));
        let second = image(&["a", "b", "c"], saved.labels());
        assert_eq!(Ancestry::of(&second), saved);
        let again = Ancestry::of(&second).and([path("/usr")]);
        assert_eq!(again.clone().altered(), ["/etc/odd name", "/usr"].map(path));
        let third = image(&["a", "b", "c", "d"], again.labels());
        let ancestry = Ancestry::of(&third);
        for (layers, reached) in
            [(&["a"][..], false), (&["a", "b"], true), (&["a", "b", "c"], true), (&["a", "x"], false)]
        {
            assert_eq!(ancestry.reaches(&third, &image(layers, HashMap::new())), reached, "{layers:?}");
        }
        assert!(ancestry.begins_with(&first) && !ancestry.begins_with(&second));
    }

    #[test]
    fn an_image_of_somebody_else_is_its_own_first() {
        let first = image(&["a", "b"], HashMap::new());
        assert!(Ancestry::of(&first).reaches(&first, &first));
        assert!(!Ancestry::of(&first).reaches(&first, &image(&["a"], HashMap::new())));
        // Whoever makes images can say anything.
        for said in ["0", "3", "-1", "all", ""] {
            let labels = HashMap::from([(LAYERS.to_owned(), said.to_owned()), (ALTERED.to_owned(), "/etc".to_owned())]);
            assert_eq!(Ancestry::of(&image(&["a", "b"], labels)), Ancestry::of(&first), "{said}");
        }
        let labels =
            HashMap::from([(LAYERS.to_owned(), "1".to_owned()), (ALTERED.to_owned(), "/proc,/,/etc".to_owned())]);
        assert_eq!(Ancestry::of(&image(&["a"], labels)).altered(), [path("/etc")]);
    }

    #[test]
    fn nothing_is_left_out_of_a_list_that_cannot_be_shortened() {
        let first = image(&["a"], HashMap::new());
        let saved = Ancestry::of(&first).and((0..9000).map(|number| path(&format!("/file-{number}"))));
        let second = image(&["a", "b"], saved.labels());
        assert!(!Ancestry::of(&second).reaches(&second, &first), "what is new over the first image is not known");
        assert!(Ancestry::of(&second).reaches(&second, &second));
    }

    #[test]
    fn a_long_list_names_the_directories_above() {
        let many = (0..4000).map(|number| path(&format!("/usr/share/doc/package-{number}/copyright")));
        let saved = Ancestry::of(&image(&["a"], HashMap::new())).and(many.chain([path("/etc/passwd")]));
        let labels = saved.labels();
        assert!(length_in_an_address(&labels[ALTERED]) <= LONGEST_LIST);
        let read = Ancestry::of(&image(&["a", "b"], labels)).altered();
        assert_eq!(read, ["/etc/passwd", "/usr/share/doc"].map(path));
    }
}
