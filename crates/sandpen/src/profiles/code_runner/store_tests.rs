use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tools::profile::code_runner::locate;

use super::*;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn store(&self) -> Store {
        let config = CodeRunnerConfig {
            root: Some(self.root()),
            secret: Some(FileSecret::new("s3cret")),
            ..CodeRunnerConfig::default()
        };
        Store::new(&config, &self.directory.path().join("state"))
    }
}

async fn put(store: &Store, conversation: &str, name: &str) -> Directory {
    let mut opened = store.open(conversation.as_bytes(), Limits::default()).await.unwrap();
    opened.put(&FileName::new(name).unwrap(), name.into()).await.unwrap();
    opened.directory().clone()
}

async fn is_found(store: &Store, path: &str) -> bool {
    matches!(store.find(&locate(path).unwrap()).await.unwrap(), Opened::File(_))
}

#[tokio::test]
async fn both_names_of_a_directory_lead_to_it() {
    let place = Place::new();
    let store = place.store();
    let whole = put(&store, "new", "a").await;
    assert_eq!(whole, Directory::of(b"new", b"s3cret"));
    let old = Directory::of(b"old", b"s3cret");
    std::fs::create_dir(place.root().join(old.shortened().as_str())).unwrap();
    assert_eq!(put(&store, "old", "a").await, old.shortened());
    for directory in [&whole, &whole.shortened(), &old, &old.shortened()] {
        assert!(is_found(&store, &format!("{}/a", directory.as_str())).await, "{directory:?}");
        assert!(!is_found(&store, &format!("{}/b", directory.as_str())).await, "{directory:?}");
    }
    assert!(!is_found(&store, &format!("{}/a", Directory::of(b"third", b"s3cret").as_str())).await);
}

#[tokio::test]
async fn new_directories_are_short_where_that_was_chosen_and_old_ones_go_on() {
    let place = Place::new();
    let before = put(&place.store(), "old", "a").await;
    let store = place.store().naming(Naming::Short);
    let short = put(&store, "new", "a").await;
    assert_eq!(short, Directory::of(b"new", b"s3cret").shortened());
    assert_eq!(put(&store, "new", "b").await, short);
    assert_eq!(put(&store, "old", "b").await, before);
    assert_eq!(put(&place.store(), "new", "c").await, short, "also where it is chosen no longer");
}

#[tokio::test]
async fn what_was_planted_leads_nowhere() {
    let place = Place::new();
    let store = place.store();
    let directory = put(&store, "c", "a").await;
    let inside = place.root().join(directory.as_str());
    std::fs::write(place.directory.path().join("secret"), "no").unwrap();
    symlink("../../secret", inside.join("link")).unwrap();
    symlink("..", inside.join("up")).unwrap();
    symlink(&inside, place.root().join("0".repeat(64))).unwrap();
    let directory = directory.as_str();
    for path in [format!("{directory}/link"), format!("{directory}/up/{directory}/a"), format!("{}/a", "0".repeat(64))]
    {
        assert!(!is_found(&store, &path).await, "{path}");
    }
}

#[tokio::test]
async fn whoever_comes_second_waits() {
    let place = Place::new();
    let (one, other) = (place.store(), place.store());
    let held = one.open(b"c", Limits::default()).await.unwrap();
    let soon = Duration::from_millis(200);
    for store in [&one, &other] {
        let waiting = tokio::time::timeout(soon, store.open(b"c", Limits::default())).await;
        assert!(waiting.is_err(), "two had it at once");
        assert!(store.open(b"another", Limits::default()).await.is_ok());
    }
    drop(held);
    drop(one.open(b"c", Limits::default()).await.unwrap());
    drop(other.open(b"c", Limits::default()).await.unwrap());
}

#[test]
fn a_secret_is_made_once_and_for_its_owner_alone() {
    let place = Place::new();
    let path = place.directory.path().join("state/code-runner/file-secret");
    let secret = own_secret(&path).unwrap();
    assert_eq!(secret.as_bytes().len(), 64);
    assert_eq!(own_secret(&path).unwrap(), secret);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(own_secret(&path).is_err());
}

#[tokio::test]
async fn a_root_of_ours_is_for_us_alone_and_is_not_told() {
    let place = Place::new();
    put(&place.store(), "c", "a").await;
    let mode = std::fs::metadata(place.root()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::remove_dir_all(place.root()).unwrap();
    std::fs::write(place.root(), "in the way").unwrap();
    let error = match place.store().open(b"c", Limits::default()).await {
        Ok(_) => panic!("a file was taken for a directory"),
        Err(error) => error,
    };
    assert!(!error.message().contains(place.root().to_str().unwrap()), "{error}");
}

#[test]
fn work_on_files_holds_up_nobody_else() {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new();
        let store = place.store();
        let directory = put(&store, "c", "a").await;
        let mut opened = store.open(b"c", Limits::default()).await.unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv());
        let located = locate(&format!("{}/a", directory.as_str())).unwrap();
        // The only thread for such work is busy: whatever is done now is done on this one.
        let mut found = Box::pin(store.find(&located));
        assert!(is_waiting(found.as_mut()).await);
        let mut files = opened.files();
        assert!(is_waiting(files.as_mut()).await);
        drop(files);
        let name = FileName::new("b").unwrap();
        let mut put = opened.put(&name, b"b".to_vec());
        assert!(is_waiting(put.as_mut()).await);
        drop(release);
        let _ = busy.await.unwrap();
        assert!(matches!(found.await.unwrap(), Opened::File(_)));
        put.await.unwrap();
        assert_eq!(opened.files().await.unwrap().len(), 2);
    });
}

#[test]
fn a_conversation_is_let_go_when_all_work_on_it_is_done() {
    let place = Place::new();
    let (one, other) = (place.store(), place.store());
    let runtime =
        || tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let elsewhere = runtime();
    let open_elsewhere = |patience| {
        elsewhere.block_on(async { tokio::time::timeout(patience, other.open(b"c", Limits::default())).await })
    };
    let here = runtime();
    let (release, released) = std::sync::mpsc::channel::<()>();
    here.block_on(async {
        let mut opened = one.open(b"c", Limits::default()).await.unwrap();
        let _busy = tokio::task::spawn_blocking(move || released.recv());
        let name = FileName::new("a").unwrap();
        // Its caller goes away while it waits for the only thread for such work.
        assert!(is_waiting(opened.put(&name, b"a".to_vec()).as_mut()).await);
    });
    assert!(open_elsewhere(Duration::from_millis(300)).is_err(), "two work on the same files");
    drop(release);
    let opened = open_elsewhere(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(elsewhere.block_on(opened.files()).unwrap().len(), 1);
}

/// As the older server did, as far as it could.
#[tokio::test]
async fn files_are_of_user_1000_where_they_can_be_given_to_it() {
    let place = Place::new();
    let directory = put(&place.store(), "c", "a").await;
    let directory = place.root().join(directory.as_str());
    let own = std::fs::metadata(place.root()).unwrap();
    let expected = if own.uid() == 0 { (1000, 1000) } else { (own.uid(), own.gid()) };
    for path in [directory.clone(), directory.join("a")] {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), expected, "{}", path.display());
    }
}

async fn is_waiting<T>(mut future: std::pin::Pin<&mut (impl Future<Output = T> + ?Sized)>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
