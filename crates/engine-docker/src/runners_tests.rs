//! Which images are runners, and which of several counts.

use bollard::models::{BuildIdentity, Identity, ImageConfig, ImageInspectMetadata, PullIdentity};

use super::*;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn image(tags: &[&str], fetched: &[&str]) -> ImageSummary {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    ImageSummary {
        repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        repo_digests: fetched.iter().map(|place| format!("{place}@{DIGEST}")).collect(),
        labels: HashMap::from([label("sandbox.runner", "true"), label("sandbox.language", "python")]),
        ..ImageSummary::default()
    }
}

fn inspected() -> ImageInspect {
    let config = ImageConfig { entrypoint: Some(vec!["python3".to_owned()]), ..ImageConfig::default() };
    ImageInspect { config: Some(config), ..ImageInspect::default() }
}

fn nobody() -> Named {
    Named(Box::new(|_| false))
}

fn name_of(finding: Finding) -> Option<String> {
    finding.ok().map(|found| found.runner.image.to_string())
}

#[test]
fn what_came_from_a_registry_is_no_runner_on_docker() {
    let judge = |tags: &[&str], fetched: &[&str]| {
        name_of(judged(&image(tags, fetched), inspected(), Flavour::Docker, &nobody()))
    };
    assert_eq!(judge(&["mine:1"], &[]).as_deref(), Some("mine:1"));
    assert_eq!(judge(&["ghcr.io/owner/tool:1"], &["ghcr.io/owner/tool"]), None);
    // One that was built here and pushed, or fetched and then named by a person.
    assert_eq!(judge(&["ghcr.io/owner/tool:1", "mine:1"], &["ghcr.io/owner/tool"]).as_deref(), Some("mine:1"));
    let refused = judged(&image(&["x:1"], &["x"]), inspected(), Flavour::Docker, &nobody()).unwrap_err();
    assert!(refused.contains("x:1") && refused.contains("--runner-image"), "{refused}");
}

#[test]
fn a_store_that_has_digests_for_everything_says_what_was_built() {
    let judge = |identity: Identity| {
        let inspected = ImageInspect { identity: Some(identity), ..inspected() };
        name_of(judged(&image(&["mine:1"], &["mine"]), inspected, Flavour::Docker, &nobody()))
    };
    let built = Identity { build: Some(vec![BuildIdentity::default()]), ..Identity::default() };
    assert_eq!(judge(built).as_deref(), Some("mine:1"));
    let pulled = Identity { pull: Some(vec![PullIdentity::default()]), ..Identity::default() };
    assert_eq!(judge(pulled), None);
}

#[test]
fn podman_has_digests_for_everything_and_a_place_for_its_own() {
    let judge = |tag: &str| {
        let place = tag.rsplit_once(':').unwrap().0;
        name_of(judged(&image(&[tag], &[place]), inspected(), Flavour::Podman, &nobody()))
    };
    assert_eq!(judge("localhost/mine:1").as_deref(), Some("localhost/mine:1"));
    for other in ["docker.io/library/mine:1", "localhost:5000/mine:1", "localhost.example/mine:1"] {
        assert_eq!(judge(other), None, "{other}");
    }
}

#[test]
fn the_operator_names_those_of_registries_in_any_spelling() {
    for (tag, pattern) in [
        ("docker.io/library/tool:1", "tool:1"),
        ("tool:1", "docker.io/library/tool:1"),
        ("team/tool:1", "docker.io/team/tool:1"),
        ("ghcr.io/team/tool:1", "ghcr.io/team/tool:1"),
    ] {
        let place = tag.rsplit_once(':').unwrap().0;
        for flavour in [Flavour::Docker, Flavour::Podman] {
            let named = Named(Box::new(move |name: &ImageName| name.as_str() == pattern));
            assert_eq!(name_of(judged(&image(&[tag], &[place]), inspected(), flavour, &named)).as_deref(), Some(tag));
        }
    }
}

#[test]
fn what_an_image_says_of_itself_comes_last() {
    let rank = |tag: &str, created: i64, tagged: Option<&str>, is_named: bool| {
        let metadata = ImageInspectMetadata { last_tag_time: tagged.map(str::to_owned) };
        let inspected = ImageInspect { metadata: Some(metadata), ..inspected() };
        let image = ImageSummary { created, ..image(&[tag], &[]) };
        judged(&image, inspected, Flavour::Docker, &Named(Box::new(move |_| is_named))).unwrap().rank
    };
    let future = now() + 2_000_000_000;
    let old = rank("old:1", 1_000, Some("2026-01-02T03:04:05.12Z"), false);
    assert!(old > rank("older:1", future, Some("2026-01-02T03:04:05.1Z"), false));
    assert!(old > rank("loaded:1", now() - 1, Some("0001-01-01T00:00:00Z"), false));
    assert!(rank("named:1", 0, None, true) > old);
    assert!(rank("true:1", 1_000, None, false) > rank("false:1", future, None, false));
    assert!(rank("a:1", 1_000, None, false) > rank("b:1", 1_000, None, false));
}

#[test]
fn languages_are_bounded_and_their_images_are_not() {
    let runner = |language: String, image: &str| ImageRunner {
        language,
        image: image.parse().unwrap(),
        command: vec!["x".to_owned()],
    };
    let many = (0..ImageRunner::MOST_LANGUAGES + 5).map(|number| runner(format!("tongue{number}"), "a:1"));
    let found = within_bounds(many.chain([runner("tongue0".to_owned(), "b:1")]));
    assert_eq!(found.len(), ImageRunner::MOST_LANGUAGES + 1);
    assert_eq!(found.last().unwrap().image.as_str(), "b:1");
}

#[test]
fn what_was_saved_and_what_has_no_name_is_none() {
    assert!(is_marked(&image(&["mine:1"], &[])));
    let saved = format!("{SAVED}/one/two:three");
    assert!(!is_marked(&image(&["mine:1", &saved], &[])));
    assert!(!is_marked(&image(&[], &["ghcr.io/owner/tool"])));
}
