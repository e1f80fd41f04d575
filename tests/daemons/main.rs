//! The real program on daemons of its own, Docker's and Podman's: what there is only there, and what happens when one of the
//! two dies.
//!
//! `SANDPEN_TEST_KILLS` sets how often a server is killed, `SANDPEN_TEST_SEED` repeats the moments.

mod absence;
mod beside;
mod certificates;
mod connections;
mod exports;
mod gate;
mod images;
mod kills;
mod older;
mod packages;
mod power;
mod proxies;
mod pulls;
mod reach;
mod rootless;
mod runners;
mod runtimes;
mod scene;
mod several;
mod waits;
mod with_packages;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sandpen_tests::daemon::Flavour;
use sandpen_tests::program::is_installed;
use sandpen_tests::{Result, Trouble};
use scene::Scene;

type Test = fn(&mut Scene) -> Result<()>;
type Stage = Arc<OnceLock<Result<Mutex<Scene>>>>;

const TESTS: &[(&str, Test)] = &[
    ("the doctor tells of the daemon and of the walls", absence::doctor),
    ("a daemon that is not there is told with what was tried", absence::nowhere),
    ("a daemon that is at no usual place is told with all of them", absence::at_no_usual_place),
    ("a daemon is found by the variable of its own client", connections::by_variable),
    ("a daemon of the user's own is found where it is", connections::at_the_users_place),
    ("a daemon is believed by its certificate, and so are we", connections::encrypted),
    ("a daemon is found by the contexts of its own client", connections::by_context),
    ("a daemon of an ordinary user is found, and not believed to have limits", rootless::of_an_ordinary_user),
    ("images are those of the daemon", images::of_the_daemon),
    ("an image without a shell is served as any other", images::without_a_shell),
    ("another runtime is what runs and what is reported", runtimes::of_gvisor),
    (
        "the name of a runtime is passed on, and kata's reported as a machine that nobody measured",
        runtimes::by_the_name_of_kata,
    ),
    ("a runtime that the daemon does not have is refused", runtimes::unheard_of),
    ("a runtime is refused that would not be what runs", runtimes::not_of_the_service),
    ("proxies of the daemon and of its client are not told", proxies::untold),
    ("an export is rebuilt by the daemon's own tools", exports::rebuilt),
    ("an export of what was saved begins with the first image", exports::of_what_was_saved),
    ("an image is meant by any of its names", pulls::by_any_name),
    ("registries get the logins of Docker's client", pulls::with_logins),
    ("nothing is fetched that must not be", pulls::never),
    ("a tag that has moved is followed when that is asked for", pulls::again),
    ("an image that does not come is told by its reason", pulls::in_vain),
    ("a call that waits for an image hears of it", pulls::with_news),
    ("a pull that is given up ends", waits::given_up),
    ("a pull that one of two gives up goes on", waits::by_one_of_two),
    ("packages are installed once, kept by the daemon, and removed", packages::kept),
    ("a fork is reached as what was created is", reach::of_a_fork),
    ("what is printed removes a sandbox with its volume", reach::to_its_end),
    ("an image that says what it runs is a language", runners::by_label),
    ("the shipped image of TypeScript is a language", runners::of_typescript),
    ("the shipped image of Python comes with its packages", with_packages::of_python),
    ("the shipped image of TypeScript comes with its packages", with_packages::of_typescript),
    ("an image of another tool's label is none", runners::of_others),
    ("an older server's runners are images with its labels", older::runners),
    ("an older server's half a processor and 256 MiB are limits of the daemon", older::limits),
    ("containers of others are not there for older servers", older::foreign),
    ("the backend of an older server is the daemon", older::backend),
    ("an image from a registry takes no language over", runners::from_a_registry),
    ("a server that is killed leaves nothing and touches nothing of others", kills::at_random_moments),
    ("what belongs to one daemon is left alone on another", several::on_one_state),
    ("a server in a container works beside its sandboxes", beside::its_containers),
    ("a daemon that goes away is told, and found again", absence::for_a_while),
    ("a daemon that is killed is told, and found again", absence::killed),
    ("a daemon that hangs is told, and sandboxes outlive it", absence::hung),
    ("a daemon that hangs keeps nobody waiting, however many there are", absence::hung_amid_work),
    ("a container that somebody else removes is gone at once", absence::removed),
    ("a persistent sandbox goes on after its daemon did", absence::of_a_persistent_one),
    ("persistent sandboxes are there after their host lost its power", power::lost),
];

/// What there is on one daemon only, and why the other is not asked.
const OF_ONE: &[(Flavour, &str, &str)] = &[
    (Flavour::Docker, "a daemon is believed by its certificate, and so are we", "Podman's service has no TLS"),
    (Flavour::Docker, "a daemon is found by the contexts of its own client", "Podman's client has no contexts"),
    (Flavour::Docker, "another runtime is what runs and what is reported", "Podman takes none with a request"),
    (
        Flavour::Docker,
        "the name of a runtime is passed on, and kata's reported as a machine that nobody measured",
        "Podman takes none with a request",
    ),
    (Flavour::Podman, "a runtime is refused that would not be what runs", "Docker starts the one that it is given"),
    (
        Flavour::Docker,
        "a persistent sandbox goes on after its daemon did",
        "Podman's containers live on without a daemon: to end all that belongs to it is the end of a machine",
    ),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share a daemon, which some of them stop.
    arguments.test_threads = Some(1);
    let stages = [Flavour::Docker, Flavour::Podman].map(|flavour| (flavour, Stage::default()));
    let mut trials = Vec::new();
    for (flavour, stage) in &stages {
        let missing = missing(*flavour);
        if let Some(why) = &missing {
            eprintln!("SKIPPED: nothing runs on {}: {why}", flavour.as_str());
        }
        for &(name, test) in TESTS {
            let (flavour, stage) = (*flavour, stage.clone());
            let is_of_another = |row: &&(Flavour, &str, &str)| row.1 == name && row.0 != flavour;
            if let Some((_, _, why)) = OF_ONE.iter().find(is_of_another) {
                let name = format!("{}: {name}", flavour.as_str());
                trials.push(Trial::ignorable_test(name, move || Ok(Completion::ignored_with(*why))));
                continue;
            }
            let run = move || match stage.get_or_init(|| Scene::set(flavour).map(Mutex::new)) {
                Ok(scene) => {
                    let mut scene = scene.lock().unwrap_or_else(PoisonError::into_inner);
                    test(&mut scene).map_err(|trouble| Failed::from(trouble.to_string()))?;
                    Ok(scene.skipped.take().map_or(Completion::Completed, Completion::ignored_with))
                }
                Err(Trouble(why)) => Err(Failed::from(format!("the scene could not be set: {why}"))),
            };
            let name = format!("{}: {name}", flavour.as_str());
            trials.push(Trial::ignorable_test(name, run).with_ignored_flag(missing.is_some()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut left = Vec::new();
    for (_, stage) in stages {
        if let Some(Ok(scene)) = Arc::into_inner(stage).and_then(OnceLock::into_inner) {
            left.extend(scene.into_inner().unwrap_or_else(PoisonError::into_inner).end());
        }
    }
    for line in &left {
        println!("left: {line}");
    }
    if left.is_empty() { conclusion.exit_code() } else { ExitCode::FAILURE }
}

fn missing(flavour: Flavour) -> Option<String> {
    let absent = || ["mmdebstrap", "cc", "docker-registry"].into_iter().find(|name| !is_installed(name));
    flavour.missing().or_else(|| absent().map(|name| format!("{name} is not installed")))
}
