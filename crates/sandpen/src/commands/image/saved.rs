//! Images that were saved from sandboxes: in the store under names of our own, on the command line as `saved:NAME`.

use images::{Digest, Named, Reference, Store};
use sandbox::{Owner, Result, SavedName};

use super::image_error;

const SAVED: &str = "saved.sandpen.invalid";

/// How the store knows what an owner has saved under a name.
pub fn reference(owner: &Owner, name: &SavedName) -> Result<Reference> {
    format!("{SAVED}/{}/{name}:latest", space(owner)).parse().map_err(image_error)
}

/// An image by `saved:NAME`, by another name, or by its digest.
pub fn look_up(store: &Store, text: &str) -> Result<Named> {
    let Some(name) = text.strip_prefix("saved:") else { return store.look_up(text).map_err(image_error) };
    let name: SavedName = name.parse()?;
    let found = store.find(&reference(&Owner::local(), &name)?).map_err(image_error)?;
    found.ok_or_else(|| image_error(images::Error::NotFound(format!("there is no image saved:{name} here"))))
}

/// What an image is called by people; `None` of what only this program has a use for.
pub fn shown(reference: &Reference) -> Option<String> {
    if !reference.is_local() {
        return Some(reference.familiar());
    }
    let name = reference.repository().strip_prefix(&format!("{}/", space(&Owner::local())));
    match name {
        Some(name) if reference.registry() == SAVED => Some(format!("saved:{name}")),
        // Somebody else's, of a server on this state directory: whoever has it on disk may see that.
        Some(_) | None if reference.registry() == SAVED => Some(reference.familiar()),
        Some(_) | None => None,
    }
}

/// What it was saved as, by whomever.
pub fn name(reference: &Reference) -> Option<&str> {
    let (_, name) = reference.repository().split_once('/')?;
    (reference.registry() == SAVED).then_some(name)
}

/// An owner's name may have any characters, and may be told to nobody.
fn space(owner: &Owner) -> String {
    Digest::of(owner.as_str().as_bytes()).digits()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_images_are_shown_as_they_are_asked_for() {
        let own = reference(&Owner::local(), &"lab".parse().unwrap()).unwrap();
        assert_eq!(shown(&own).as_deref(), Some("saved:lab"));
        let other = reference(&"somebody".parse().unwrap(), &"lab".parse().unwrap()).unwrap();
        assert!(other != own && shown(&other).unwrap().starts_with(SAVED));
        let reference = |text: &str| text.parse::<Reference>().unwrap();
        assert_eq!(shown(&reference("debian:12")).as_deref(), Some("debian:12"));
        assert_eq!(shown(&reference("trees.sandpen.invalid/python/1f:latest")), None);
    }
}
