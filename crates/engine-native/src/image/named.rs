//! Images of the store, as registries and archives give them: layers, and a word about how to run programs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use images::{Local, Platform, Reference, RunConfig, Store};
use sandbox::user::UserTables;
use sandbox::{Environment, Error, ImageName, Insistence, Result, Role};

use super::layers::Layers;
use super::users::{self, User};
use super::{Hold, RootTree, image_error, tree};

/// The image of this name, which stays in use as long as the answer is kept.
pub fn hold(name: &ImageName, role: Role, store: &Path) -> Result<Hold> {
    let reference: Reference = name.as_str().parse().map_err(image_error)?;
    let is_open = match Local::of(&reference) {
        // Asked for by another way, which knows whose it is.
        Some(Local::Saved) => false,
        // A build goes on from what it has kept; nobody else can ask for this role.
        Some(Local::Tree) => role == Role::Builder,
        // These have random names and a short life, and are nobody's to ask for.
        Some(Local::Fork | Local::Export) => false,
        None => !reference.is_local(),
    };
    if !is_open {
        return Err(Error::not_found(format!("there is no image {} here", reference.familiar())));
    }
    // Whoever only looks for an image need not make a store.
    let found = match store.is_dir() {
        true => Store::open(store).and_then(|store| store.resolve(&reference)).map_err(image_error)?,
        false => None,
    };
    let Some(image) = found else {
        let familiar = reference.familiar();
        return Err(Error::not_found(format!("there is no image {familiar} here"))
            .with_hint(format!("get it by `sandpen image pull {familiar}`")));
    };
    let (made_for, machine) = (&image.config.platform, Platform::host());
    if made_for.fitness(&machine).is_none() {
        return Err(Error::unsupported(format!("the image is made for {made_for}, and this machine is {machine}")));
    }
    Ok(Arc::new(image))
}

/// Whether programs of the image are root, as far as it goes.
pub fn names_root(image: &images::Image) -> Result<bool> {
    let word = &image.config.config.user;
    if word.is_empty() {
        return Ok(true);
    }
    let mut all: Vec<PathBuf> = image.directories().cloned().collect();
    all.reverse();
    let tables = Layers::open(&all).and_then(|layers| users::tables(&layers)).map_err(unreadable)?;
    Ok(users::runs_as(tables.find(word)?, Role::ImageUser(Insistence::Must)).id == 0)
}

pub fn tree(image: &images::Image, role: Role) -> Result<RootTree> {
    // An overlay wants the highest first.
    let mut lowers: Vec<PathBuf> = image.directories().cloned().collect();
    lowers.reverse();
    described(lowers, &image.config.config, role)
}

fn unreadable(cause: io::Error) -> Error {
    Error::unavailable("the image's tree cannot be read").with_cause(cause)
}

pub fn described(lowers: Vec<PathBuf>, config: &RunConfig, role: Role) -> Result<RootTree> {
    let layers = Layers::open(&lowers).map_err(unreadable)?;
    // What else our mounts lie on they hide. A link there would hide all that the image has in it.
    if layers.find("etc").map_err(unreadable)?.is_some_and(|etc| !etc.is_directory()) {
        return Err(tree::not_a_directory("etc"));
    }
    let tables = users::tables(&layers).map_err(unreadable)?;
    let user = users::runs_as(tables.find(&config.user)?, role);
    let mut tree = tree::over(lowers, &layers, &tables, user)?;
    for (name, value) in variables(config) {
        match &*name {
            "PATH" => tree.search_path = value,
            // Whose they are is told below.
            "HOME" | "USER" => {}
            _ => tree.environment.push((name, value)),
        }
    }
    tree.environment.extend(belongings(&layers, &tables, user));
    Ok(tree)
}

/// Those that a shell could set as well; others are of no use to a program.
fn variables(config: &RunConfig) -> impl Iterator<Item = (String, String)> {
    let pairs = config.env.iter().filter_map(|pair| pair.split_once('='));
    let is_usable = |(name, value): &(&str, &str)| Environment::default().insert(*name, *value).is_ok();
    pairs.filter(is_usable).map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// The name and home of a user that the image itself has, if that home is the user's to write to. Otherwise they are ours.
pub fn belongings(layers: &Layers, tables: &UserTables, user: User) -> Vec<(String, String)> {
    let Some(account) = tables.account(user.id) else { return Vec::new() };
    let mut variables = vec![("USER".to_owned(), account.name.to_owned())];
    let home = layers.find(account.home).ok().flatten();
    if home.is_some_and(|home| home.is_directory() && home.owner().is_ok_and(|owner| owner == user.id)) {
        variables.push(("HOME".to_owned(), account.home.to_owned()));
    }
    variables.retain(|(name, value)| Environment::default().insert(name, value).is_ok());
    variables
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandbox::ErrorKind;

    use super::*;

    fn tree_of(config: RunConfig) -> RootTree {
        tree_for(config, Role::Guest)
    }

    fn tree_for(config: RunConfig, role: Role) -> RootTree {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("etc")).unwrap();
        fs::create_dir_all(place.path().join("srv/app")).unwrap();
        fs::create_dir_all(place.path().join("root")).unwrap();
        let users = "root:x:0:0::/root:/bin/sh\napp:x:5:7::/srv/app:/bin/sh\n";
        fs::write(place.path().join("etc/passwd"), users).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(place.path().join("srv/app"), Some(5), Some(7)).unwrap();
        }
        described(vec![place.path().to_owned()], &config, role).unwrap()
    }

    #[test]
    fn the_image_says_how_programs_run() {
        let env = ["PATH=/opt/bin", "A=b=c", "HOME=/nowhere", "1X=y", "odd", "LANG=de_DE.UTF-8"];
        let found =
            tree_of(RunConfig { user: "app".to_owned(), env: env.map(str::to_owned).to_vec(), ..RunConfig::default() });
        assert_eq!(found.search_path, "/opt/bin");
        assert_eq!(found.user, User { id: 5, group: 7 });
        let variables: Vec<String> = found.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut expected = vec!["LANG=C.UTF-8", "A=b=c", "LANG=de_DE.UTF-8", "USER=app"];
        expected.extend(rustix::process::geteuid().is_root().then_some("HOME=/srv/app"));
        assert_eq!(variables, expected);
    }

    #[test]
    fn an_image_of_root_has_our_user() {
        let found = tree_of(RunConfig { env: vec!["HOME=/root".to_owned()], ..RunConfig::default() });
        assert_eq!(found.user, User::SANDBOX);
        assert!(found.environment.iter().all(|(name, _)| name != "HOME" && name != "USER"), "{:?}", found.environment);
        let passwd = found.files.iter().find(|file| file.path.as_bytes() == b"/etc/passwd").unwrap();
        assert!(String::from_utf8_lossy(&passwd.contents).contains("\nsandbox:x:1000:1000:"));
    }

    #[test]
    fn an_image_of_root_is_roots_where_that_is_wanted() {
        let env = vec!["HOME=/nowhere".to_owned()];
        let found = tree_for(RunConfig { env, ..RunConfig::default() }, Role::ImageUser(Insistence::Must));
        assert_eq!(found.user, User::ROOT);
        let variables: Vec<String> = found.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(variables, ["LANG=C.UTF-8", "USER=root", "HOME=/root"]);
        assert!(found.files.iter().all(|file| file.path.as_bytes() != b"/etc/passwd"), "it lacks nobody");
    }

    #[test]
    fn an_image_that_is_not_there_is_to_be_pulled() {
        let place = tempfile::tempdir().unwrap();
        for store in ["missing", "."] {
            let error = hold(&"tool:1".parse().unwrap(), Role::Guest, &place.path().join(store)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert_eq!(error.hint(), Some("get it by `sandpen image pull tool:1`"));
        }
        let error = hold(&"No/Name".parse().unwrap(), Role::Guest, place.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
