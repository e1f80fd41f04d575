//! A store next to things that must not change.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use images::import::{self, Request};
use images::{Image, ImageLimits, Named, Reference, Result, Store, Work};

pub struct Place {
    pub top: tempfile::TempDir,
    pub store: Arc<Store>,
}

impl Place {
    pub fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("outside")).unwrap();
        fs::write(top.path().join("outside/canary"), "untouched").unwrap();
        fs::set_permissions(top.path().join("outside/canary"), fs::Permissions::from_mode(0o604)).unwrap();
        let store = Arc::new(Store::open(&top.path().join("store")).unwrap());
        Self { top, store }
    }

    pub fn outside(&self) -> PathBuf {
        self.top.path().join("outside")
    }

    /// Whether anything next to the store is not as it was.
    pub fn is_harmed(&self) -> bool {
        let outside = self.outside();
        let canary = fs::symlink_metadata(outside.join("canary"));
        let intact = canary.is_ok_and(|found| found.mode() & 0o7777 == 0o604 && found.nlink() == 1 && found.len() == 9)
            && fs::read_to_string(outside.join("canary")).unwrap() == "untouched"
            && fs::read_dir(&outside).unwrap().count() == 1
            && fs::metadata(&outside).unwrap().mode() & 0o7777 == 0o755
            && fs::read_dir(self.top.path()).unwrap().flatten().all(|entry| {
                entry.file_name().to_str().is_some_and(|name| ["outside", "store", "offered", "naive"].contains(&name))
            });
        !intact
    }

    pub fn import(&self, bytes: &[u8]) -> Result<Named> {
        self.import_within(bytes, ImageLimits::default())
    }

    pub fn import_within(&self, bytes: &[u8], limits: ImageLimits) -> Result<Named> {
        let path = self.top.path().join("offered");
        fs::write(&path, bytes).unwrap();
        self.import_path(&path, limits)
    }

    pub fn import_path(&self, path: &Path, limits: ImageLimits) -> Result<Named> {
        let request = Request { name: Some(reference("test:1")), pick: None };
        import::import(&self.store, path, &request, &Work { limits, ..Work::default() })
    }

    pub fn image(&self) -> Image {
        self.store.resolve(&reference("test:1")).unwrap().expect("it was imported")
    }

    /// Nothing can be seen of an image, and nothing of it takes room once the store is swept.
    #[track_caller]
    pub fn assert_nothing_came(&self) {
        assert!(self.store.names().unwrap().is_empty(), "the image has a name");
        for directory in ["layers", "downloads"] {
            let left: Vec<_> = names(&self.top.path().join("store/v1").join(directory));
            let left: Vec<_> = left.into_iter().filter(|name| !name.starts_with(".lock-")).collect();
            assert!(left.is_empty(), "{directory}: {left:?}");
        }
        self.store.collect().unwrap();
        assert_eq!(self.store.size().unwrap(), 0, "room is not given back");
        assert!(!self.is_harmed());
    }
}

pub fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
}

pub fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}
