//! A process that dies while it saves: this very program, started again to be killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox::{Engine, Owner, Persistence, Snapshots};

use crate::place::{Place, create};
use crate::tests;

tests!(whoever_dies_while_saving_leaves_whole_images_or_none);

const VICTIM: &str = "SANDPEN_TEST_VICTIM";
const ROUNDS: u64 = 6;

/// Saves the same sandbox over and over until it is killed.
pub async fn main_if_asked() {
    let Some(directory) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    let place = Place::at(directory).expect("a place");
    let sandbox = create(place.engine().await, "host", Persistence::Ephemeral).await.expect("a sandbox");
    sandbox.says("head -c 8M /dev/urandom >data; cp data copy; echo whole >end").await;
    for round in 0.. {
        sandbox.says(&format!("echo {round} >>end")).await;
        let name = format!("lab-{}", round % 3).parse().expect("a name");
        sandbox.engine.save(&sandbox.id, &name).await.expect("an image");
        println!("saved {round}");
    }
}

async fn whoever_dies_while_saving_leaves_whole_images_or_none(place: Place) {
    for round in 0..ROUNDS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .env(VICTIM, place.path(""))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("saved "));
        tokio::time::sleep(Duration::from_millis(37 * round)).await;
        victim.kill().unwrap();
        victim.wait().unwrap();

        let engine = place.engine().await;
        let saved = engine.saved(&Owner::local()).await.unwrap();
        assert!(!saved.is_empty());
        for image in &saved {
            let sandbox =
                create(engine.clone(), &format!("saved:{}", image.name), Persistence::Ephemeral).await.unwrap();
            sandbox.says("cmp data copy && grep -q whole end && [ $(stat -c %s data) = 8388608 ]").await;
            engine.destroy(&sandbox.id).await.unwrap();
        }
        for image in saved {
            assert!(engine.forget(&Owner::local(), &image.name).await.unwrap());
        }
    }
    place.store.sweep().unwrap();
    place.store.collect().unwrap();
    assert_eq!(place.store.size().unwrap(), 0);
    let left = |below: &str| std::fs::read_dir(place.path("state/images/v1").join(below)).unwrap().count();
    assert_eq!(left("blobs") + left("names") + left("trash") + left("downloads"), 0);
}
