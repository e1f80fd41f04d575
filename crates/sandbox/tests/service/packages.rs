//! Installing packages: whose the builders are, and how many may wait.

use std::sync::Arc;

use sandbox::engine::fake::Operation;
use sandbox::{
    ErrorKind, Image, Owner, PackageHost, PackageIndex, PackageLanguage, PackageSettings, Packages, Prepared, Result,
    SandboxService,
};

use crate::support::{World, create, kind, owner, seconds, settle, spec};

/// A machine with an index. The images of the fake host have no Python, so that nothing is ever installed from it.
struct Machine;

#[async_trait::async_trait]
impl PackageHost for Machine {
    fn index(&self, _: PackageLanguage) -> Result<PackageIndex> {
        Ok(PackageIndex { hosts: vec!["index.example".parse()?], ..PackageIndex::default() })
    }

    async fn identity(&self, _: &Owner, image: &Image) -> Result<String> {
        Ok(image.to_string())
    }
}

async fn process(world: &World) -> SandboxService {
    let mut settings = world.settings();
    settings.packages = Some(PackageSettings::new(Arc::new(Machine)));
    world.process_with(settings).await
}

async fn prepare(service: &SandboxService, image: &Image, package: &str) -> Result<Prepared> {
    let packages = Packages::sort_out(PackageLanguage::Python, &[package.to_owned()])?;
    service.prepare_packages(&owner(), image, &packages[0], |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn a_builder_is_in_nobodys_reach_whatever_its_image() {
    let world = World::new();
    let service = process(&world).await;
    let info = create(&service, spec()).await;
    service.save(&owner(), &info.id, &"lab".parse().unwrap()).await.unwrap();
    world.host.delay(Operation::Start, seconds(60));
    for image in [Image::Host, Image::Saved("lab".parse().unwrap())] {
        let installing = tokio::spawn({
            let service = service.clone();
            async move { prepare(&service, &image, "six").await }
        });
        settle().await;
        let existing = world.host.existing();
        let builder = existing.iter().find(|id| **id != info.id).expect("a builder is at work");
        let listed: Vec<_> = service.list(&owner()).await.unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(listed, std::slice::from_ref(&info.id));
        let reached = service.files(&owner(), builder).err().map(|error| error.kind());
        assert_eq!(reached, Some(ErrorKind::NotFound));
        let error = installing.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("no Python"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn few_wait_and_only_as_long_as_somebody_waits_for_them() {
    let world = World::new();
    let service = process(&world).await;
    world.host.delay(Operation::Start, seconds(60));
    let ask = |number: usize| {
        let service = service.clone();
        tokio::spawn(async move { prepare(&service, &Image::Host, &format!("package-{number}")).await })
    };
    let mut asking = Vec::new();
    for number in 0..6 {
        asking.push(ask(number));
        settle().await;
    }
    // Two have begun.
    assert_eq!(world.host.existing().len(), 2);
    let error = ask(6).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    // Whoever asks for the same only listens.
    let listening = ask(5);
    settle().await;
    for left in [0, 3, 4, 5] {
        asking[left].abort();
    }
    settle().await;
    assert_eq!(kind(listening.await.unwrap()), ErrorKind::Unsupported);
    // What had begun went on, and so did what somebody waited for.
    let made = || world.host.calls(Operation::Create);
    assert_eq!(made(), 4);
    assert_eq!(kind(ask(3).await.unwrap()), ErrorKind::Unsupported);
    assert_eq!(made(), 5);
}
