//! Images of this machine's own programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::World;

/// A tree in the making.
pub struct Root<'a> {
    world: &'a World,
    directory: PathBuf,
}

impl<'a> Root<'a> {
    pub fn new(world: &'a World) -> Self {
        let directory = world.work().join("root");
        fs::create_dir_all(&directory).unwrap();
        Self { world, directory }
    }

    /// Those of `/bin`, with what they need.
    pub fn with_programs(self, names: &[&str]) -> Self {
        let programs: Vec<PathBuf> = names.iter().map(|name| Path::new("/bin").join(name)).collect();
        for program in &programs {
            self.copy(program);
        }
        self.with_libraries(&programs)
    }

    /// The system's Python with pip.
    pub fn with_python(self) -> Self {
        let script = "import pip, sys, sysconfig, os, glob\n\
                      print(os.path.realpath(sys.executable)); print(sysconfig.get_paths()['stdlib'])\n\
                      print(os.path.dirname(pip.__file__))\n\
                      print(*glob.glob(sysconfig.get_paths()['stdlib'] + '/lib-dynload/*.so'), sep='\\n')";
        let asked = Command::new("/usr/bin/python3").args(["-I", "-c", script]).output().unwrap();
        let asked = String::from_utf8(asked.stdout).unwrap();
        let places: Vec<PathBuf> = asked.lines().map(PathBuf::from).collect();
        for place in &places[..3] {
            self.copy(place);
        }
        self.link(&places[0], "usr/bin/python3");
        let programs: Vec<PathBuf> = places.iter().filter(|place| place.is_file()).cloned().collect();
        self.with_libraries(&programs)
    }

    /// Node.js and npm.
    pub fn with_npm(self) -> Self {
        let program = fs::canonicalize("/usr/bin/npm").unwrap();
        let node = PathBuf::from("/usr/bin/node");
        self.copy(program.ancestors().nth(2).unwrap());
        let env = PathBuf::from("/usr/bin/env");
        self.copy(&node);
        self.copy(&env);
        self.link(&program, "usr/bin/npm");
        self.with_libraries(&[node, env])
    }

    pub fn with_file(self, path: impl AsRef<Path>, text: &str, mode: u32) -> Self {
        let path = self.directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    /// One that everybody may change.
    pub fn with_open_directory(self, path: &str) -> Self {
        let path = self.directory.join(path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        self
    }

    /// As an image of the world, under the name that is given back.
    pub fn import(self, name: &str) -> String {
        let tar =
            Command::new("tar").args(["-C", "root", "-cf", "root.tar", "."]).current_dir(self.world.work()).status();
        assert!(tar.unwrap().success());
        self.world.import_image("root.tar", name)
    }

    fn with_libraries(self, programs: &[PathBuf]) -> Self {
        let listed = Command::new("ldd").args(programs).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let words = listed.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
        for library in words.collect::<BTreeSet<_>>() {
            self.copy(Path::new(library));
        }
        self
    }

    fn copy(&self, path: &Path) {
        let target = self.directory.join(path.strip_prefix("/").unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        // By its time Python knows whether what it compiled is of this file; otherwise it compiles all of pip at each start.
        let done = Command::new("cp").args(["-rLT", "--preserve=timestamps"]).arg(path).arg(target).status().unwrap();
        assert!(done.success(), "{}", path.display());
    }

    fn link(&self, program: &Path, name: &str) {
        let link = self.directory.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(program, link).unwrap();
        }
    }
}

/// Whether the system's Python could be an image's.
pub fn has_pip() -> bool {
    let asked = Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    let has_it = asked.is_ok_and(|done| done.status.success());
    if !has_it {
        super::skip("the system's Python has no pip: packages of images are not tested");
    }
    has_it
}

pub fn has_npm() -> bool {
    let has_it = Path::new("/usr/bin/npm").exists() && Path::new("/usr/bin/node").exists();
    if !has_it {
        super::skip("npm is not installed: packages of JavaScript are not tested");
    }
    has_it
}
