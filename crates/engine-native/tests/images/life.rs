//! An image that is used stays, whoever removes its name and whatever becomes of the process that made the sandbox.

use sandbox::{Engine, ErrorKind, Persistence};

use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, reference};
use crate::tests;

tests!(
    an_image_that_is_not_there_is_named,
    an_image_in_use_is_not_collected,
    a_persistent_sandbox_keeps_its_image,
    a_name_means_what_it_means_now,
);

async fn an_image_that_is_not_there_is_named(place: Place) {
    let missing =
        create(place.engine().await, "registry.example.org/tool:7", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(missing.hint(), Some("get it by `sandpen image pull registry.example.org/tool:7`"));
}

fn two_files(text: &str) -> Vec<Vec<u8>> {
    vec![system(), Layer::new().file("srv/file", 0o644, text).finish()]
}

async fn an_image_in_use_is_not_collected(place: Place) {
    place.image("tool:1", two_files("one"), Default::default());
    let sandbox = place.sandbox("tool:1").await;
    assert!(place.store.remove_name(&reference("tool:1")).unwrap());
    assert_eq!(place.store.collect().unwrap().layers, 0);
    assert_eq!(sandbox.says("cat /srv/file").await, "one");
    sandbox.destroy().await;
    assert_eq!(place.store.collect().unwrap().layers, 2);
}

async fn a_persistent_sandbox_keeps_its_image(place: Place) {
    place.image("tool:1", two_files("one"), Default::default());
    let made = create(place.engine().await, "tool:1", Persistence::Persistent).await.unwrap();
    let id = made.id.clone();
    // With its launcher; what is left is process 1.
    drop(made);
    assert!(place.store.remove_name(&reference("tool:1")).unwrap());
    assert_eq!(place.store.collect().unwrap().layers, 0);
    let again = Sandbox { engine: place.engine().await, id };
    assert!(again.engine.list().await.unwrap().iter().any(|listed| listed.id == again.id));
    assert_eq!(again.says("cat /srv/file; id -u").await, "one1000\n");
    again.destroy().await;
    assert_eq!(place.store.collect().unwrap().layers, 2);
}

async fn a_name_means_what_it_means_now(place: Place) {
    place.image("tool:1", two_files("one"), Default::default());
    let engine = place.engine().await;
    let old = create(engine.clone(), "tool:1", Persistence::Ephemeral).await.unwrap();
    place.image("tool:1", two_files("two"), Default::default());
    let new = create(engine, "tool:1", Persistence::Ephemeral).await.unwrap();
    assert_eq!(old.says("cat /srv/file").await, "one");
    assert_eq!(new.says("cat /srv/file").await, "two");
    old.destroy().await;
    new.destroy().await;
}
