//! Images that were saved from sandboxes: in the store under names of our own, on the command line as `saved:NAME`.

use images::{Local, Named, Reference, Store, local};
use sandbox::{Owner, Result, SavedName};

use super::image_error;

/// How the store knows what an owner has saved under a name.
pub fn reference(owner: &Owner, name: &SavedName) -> Result<Reference> {
    local::saved(owner.as_str(), name.as_str()).map_err(image_error)
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
    match local::saved_by(Owner::local().as_str(), reference) {
        Some(name) => Some(format!("saved:{name}")),
        // Somebody else's, of a server on this state directory: whoever has it on disk may see that.
        None => (Local::of(reference) == Some(Local::Saved)).then(|| reference.familiar()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_images_are_shown_as_they_are_asked_for() {
        let own = reference(&Owner::local(), &"lab".parse().unwrap()).unwrap();
        assert_eq!(shown(&own).as_deref(), Some("saved:lab"));
        let other = reference(&"somebody".parse().unwrap(), &"lab".parse().unwrap()).unwrap();
        assert!(other != own && shown(&other).unwrap().starts_with("saved.sandpen.invalid/"));
        let reference = |text: &str| text.parse::<Reference>().unwrap();
        assert_eq!(shown(&reference("debian:12")).as_deref(), Some("debian:12"));
        assert_eq!(shown(&reference("trees.sandpen.invalid/python/1f:latest")), None);
    }
}
