//! What a sandbox was made from: what the image that is saved of it begins with.

use images::{Descriptor, Image as Held};
use sandbox::Image;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    Host,
    /// A directory or an archive of the host, which has no layers that others could have.
    Tree,
    Image {
        manifest: Box<Descriptor>,
        /// How many of its layers, the highest ones, were put into the sandbox's own writable layer.
        in_upper: usize,
        /// Whether it was saved of a sandbox, so that what it says of itself in our words is ours.
        #[serde(default)]
        saved: bool,
    },
}

impl Base {
    pub fn of(image: &Image, held: Option<&Held>, in_upper: usize) -> Self {
        match (image, held) {
            (Image::Host, _) => Self::Host,
            (Image::Named(_) | Image::Saved(_), Some(held)) => {
                let saved = matches!(image, Image::Saved(_));
                Self::Image { manifest: Box::new(held.named.manifest.clone()), in_upper, saved }
            }
            (Image::Directory(_) | Image::Archive(_) | Image::Named(_) | Image::Saved(_), _) => Self::Tree,
        }
    }
}
