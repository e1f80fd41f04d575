//! What exports have built: it goes, whoever stops waiting for it and whenever.

use std::io::Cursor;
use std::time::Duration;

use bollard::query_parameters::{ListImagesOptions, TagImageOptionsBuilder};
use engine_docker::{BuiltImage, DockerEngine};
use sandbox::Engine;

use crate::Case;
use crate::world::{World, eventually};

pub const CASES: &[Case] = &[
    ("builds::what_is_dropped_is_removed", |world| Box::pin(dropped(world))),
    ("builds::one_that_nobody_waits_for_comes_to_its_end_and_goes", |world| Box::pin(abandoned(world))),
    ("builds::what_was_left_goes_when_somebody_looks_around", |world| Box::pin(left(world))),
];

fn context(world: &World) -> Cursor<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, text) in [("Dockerfile", format!("FROM {}\nCOPY a /a\n", world.place.image)), ("a", "x".to_owned())] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        archive.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    Cursor::new(archive.into_inner().unwrap())
}

/// Names of images that were built here.
async fn built(world: &World) -> Vec<String> {
    let prefix = format!("saved.sandpen.invalid/{}/export:", world.installation());
    // Podman fails when another test removes one meanwhile.
    let listed = loop {
        match world.docker.list_images(None::<ListImagesOptions>).await {
            Ok(listed) => break listed,
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 500, .. }) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    listed.into_iter().flat_map(|image| image.repo_tags).filter(|name| name.starts_with(&prefix)).collect()
}

async fn build(engine: &DockerEngine, world: &World) -> sandbox::Result<BuiltImage> {
    engine.build(engine.begin_build()?, context(world)).await
}

async fn look_around(engine: &DockerEngine) {
    engine.list().await.unwrap();
}

async fn dropped(world: World) {
    let engine = world.engine().await;
    let image = build(&engine, &world).await.unwrap();
    assert_eq!(built(&world).await, std::slice::from_ref(&image.name));
    look_around(&engine).await;
    assert_eq!(built(&world).await.len(), 1, "what is looked at now was removed");
    drop(image);
    eventually("what was dropped is removed", async || built(&world).await.is_empty()).await;
    build(&engine, &world).await.unwrap().end().await.unwrap();
    assert_eq!(built(&world).await, [""; 0]);
}

async fn abandoned(world: World) {
    let engine = world.engine().await;
    for patience in [1, 50, 200] {
        let waiting = tokio::time::timeout(Duration::from_millis(patience), build(&engine, &world));
        drop(waiting.await);
    }
    // One more, by the end of which the others have ended: a daemon takes them as they come.
    drop(build(&engine, &world).await.unwrap());
    eventually("all that was built is removed", async || built(&world).await.is_empty()).await;
}

async fn left(world: World) {
    let config = world.config();
    let instance = config.instance.to_string();
    let engine = DockerEngine::start(config).await.unwrap();
    let installation = world.installation();
    let label = format!("LABEL org.sandpen.build={installation}");
    let image = world.image("sandpen-test-left-build", &label).await;
    let repository = format!("saved.sandpen.invalid/{installation}/export");
    for tag in [format!("{instance}-23456789"), "in-23456789abcdefgh-23456789".to_owned()] {
        let options = TagImageOptionsBuilder::default().repo(&repository).tag(&tag).build();
        world.docker.tag_image(&image, Some(options)).await.unwrap();
    }
    assert_eq!(built(&world).await.len(), 2);
    look_around(&engine).await;
    let left = built(&world).await;
    world.remove_image(&image).await;
    assert_eq!(left, [""; 0]);
}
