use super::*;

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    (directory, path)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn change(path: &Path, text: &str) -> Written {
    Configuration::read(path).unwrap().write(text).unwrap()
}

#[test]
fn a_file_that_somebody_else_changed_meanwhile_is_left_as_they_made_it() {
    let (directory, path) = place();
    fs::write(&path, "one").unwrap();
    let read = Configuration::read(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    assert_eq!(read.write("ours").unwrap(), Written::Changed);
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    assert_eq!(names(directory.path()), ["config.json"]);

    let other = directory.path().join("new.json");
    let nothing = Configuration::read(&other).unwrap();
    fs::write(&other, "theirs").unwrap();
    assert_eq!(nothing.write("ours").unwrap(), Written::Changed);
    assert_eq!(fs::read_to_string(&other).unwrap(), "theirs");
}

#[test]
fn whoever_changes_a_file_in_the_last_moment_is_not_overwritten() {
    let (directory, path) = place();
    fs::write(&path, "one").unwrap();
    let read = Configuration::read(&path).unwrap();
    let prepared = read.prepare(b"ours", "x").unwrap().unwrap();
    fs::write(&path, "theirs").unwrap();
    assert_eq!(read.finish(prepared).unwrap(), Written::Changed);
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    assert_eq!(names(directory.path()), ["config.json", "config.json.sandpen-backup"]);
}

#[test]
fn the_first_backup_and_the_newest_are_kept() {
    let (directory, path) = place();
    fs::write(&path, "0").unwrap();
    for number in 1..=15 {
        let Written::Done { backup } = change(&path, &number.to_string()) else { panic!("it was changed") };
        assert_eq!(fs::read_to_string(backup.unwrap()).unwrap(), (number - 1).to_string());
    }
    let mut wanted: Vec<String> = (7..=15).map(|number| format!("config.json.sandpen-backup-{number}")).collect();
    wanted.extend(["config.json".to_owned(), "config.json.sandpen-backup".to_owned()]);
    wanted.sort();
    assert_eq!(names(directory.path()), wanted);
    assert_eq!(fs::read_to_string(directory.path().join("config.json.sandpen-backup")).unwrap(), "0");
}

#[test]
fn what_is_backed_up_already_is_not_backed_up_again() {
    let (directory, path) = place();
    for _ in 0..3 {
        fs::write(&path, "before").unwrap();
        let backup = directory.path().join("config.json.sandpen-backup");
        assert_eq!(change(&path, "after"), Written::Done { backup: Some(backup) });
    }
    assert_eq!(names(directory.path()).len(), 2);
}

#[test]
fn a_byte_order_mark_is_not_part_of_the_text_and_stays() {
    let (_directory, path) = place();
    fs::write(&path, "\u{feff}{}").unwrap();
    let read = Configuration::read(&path).unwrap();
    assert_eq!(read.text(), "{}");
    read.write("{1}").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "\u{feff}{1}");
}

#[test]
fn what_is_no_text_is_refused() {
    let (directory, path) = place();
    fs::write(&path, b"{\n\"a\": \"\xff\"}").unwrap();
    assert!(Configuration::read(&path).unwrap_err().message().contains("not UTF-8 text, from line 2 on"));
    let error = Configuration::read(directory.path()).unwrap_err();
    assert!(error.message().ends_with("is not a file"), "{error}");
}

#[cfg(unix)]
mod unix {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn links_stay_and_lead_to_the_new_text() {
        let (directory, path) = place();
        let target = directory.path().join("dotfiles");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("mine.json"), "before").unwrap();
        symlink("dotfiles/mine.json", &path).unwrap();
        change(&path, "after");
        assert!(path.is_symlink());
        assert_eq!(fs::read_to_string(target.join("mine.json")).unwrap(), "after");
        assert_eq!(names(&target), ["mine.json"]);
        assert_eq!(names(directory.path()), ["config.json", "config.json.sandpen-backup", "dotfiles"]);

        fs::remove_file(target.join("mine.json")).unwrap();
        assert!(Configuration::read(&path).unwrap_err().message().contains("is a link to nothing"));
    }

    #[test]
    fn a_file_with_several_names_is_left_alone() {
        let (directory, path) = place();
        fs::write(&path, "before").unwrap();
        fs::hard_link(&path, directory.path().join("dotfile")).unwrap();
        let error = Configuration::read(&path).unwrap().write("after").unwrap_err();
        assert!(error.message().ends_with("is the same file under several names"), "{error}");
        assert!(error.hint().unwrap().contains("--print"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(names(directory.path()), ["config.json", "dotfile"]);
    }

    #[test]
    fn modes_stay_and_new_files_are_their_owners_alone() {
        let (directory, path) = place();
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        change(&path, "after");
        assert_eq!(mode(&path), 0o640);
        assert_eq!(mode(&directory.path().join("config.json.sandpen-backup")), 0o640);
        let new = directory.path().join("a/b/new.json");
        assert_eq!(change(&new, "new"), Written::Done { backup: None });
        assert_eq!((mode(&new), mode(new.parent().unwrap())), (0o600, 0o700));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let error = Configuration::read(&path).unwrap().write("more").unwrap_err();
        assert!(error.message().ends_with("is read-only"), "{error}");
    }

    #[test]
    fn owners_stay() {
        if !system::is_root() {
            _ = writeln!(std::io::stdout(), "SKIPPED: only root has files of others to change");
            return;
        }
        use std::os::unix::fs::{MetadataExt, chown};
        let (directory, path) = place();
        chown(directory.path(), Some(1234), Some(1235)).unwrap();
        fs::write(&path, "before").unwrap();
        chown(&path, Some(1236), Some(1237)).unwrap();
        change(&path, "after");
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
        assert_eq!(owner(&path), (1236, 1237));
        assert_eq!(owner(&directory.path().join("config.json.sandpen-backup")), (1236, 1237));
        let new = directory.path().join("a/new.json");
        change(&new, "new");
        assert_eq!((owner(&new), owner(new.parent().unwrap())), ((1234, 1235), (1234, 1235)));
    }
}
