use std::os::unix::fs::PermissionsExt;

use sandbox::{ErrorKind, SecretName};

use super::*;

const CANARY: &str = "sk-canary\"\\value é";

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn secret(name: &str, value: &str) -> Secret {
    let hosts = vec!["api.example.com".parse().unwrap(), "*.example.org:8443".parse().unwrap()];
    let header = Some("X-Api-Key: {}".parse().unwrap());
    Secret::new(name.parse().unwrap(), SecretValue::new(value).unwrap(), hosts, header).unwrap()
}

fn with_text(text: &str) -> (tempfile::TempDir, SecretsFile) {
    let directory = directory();
    let file = SecretsFile::of_state_directory(directory.path());
    std::fs::write(file.path(), text).unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    (directory, file)
}

#[test]
fn what_is_written_reads_back() {
    let directory = directory();
    let file = SecretsFile::of_state_directory(&directory.path().join("new/state"));
    assert!(file.read_if_there().unwrap().is_empty());
    assert!(file.read().is_err());
    file.change(|vault| {
        vault.insert(secret("API_KEY", CANARY));
        Ok(())
    })
    .unwrap();
    assert_eq!(std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let vault = file.read().unwrap();
    let name: SecretName = "API_KEY".parse().unwrap();
    let found = vault.get(&name).unwrap();
    assert_eq!(found.value().expose(), CANARY);
    assert_eq!(found.hosts(), secret("API_KEY", CANARY).hosts());
    assert_eq!(found.header().unwrap().to_string(), "X-Api-Key: {}");
    file.change(|vault| Ok(vault.remove(&name))).unwrap().unwrap();
    assert!(file.read().unwrap().is_empty());
}

#[test]
fn a_refused_change_leaves_the_file_alone() {
    let (_directory, file) = with_text("[A]\nvalue = '12345678'\nhosts = ['a.example']\n");
    let before = std::fs::read(file.path()).unwrap();
    file.change(|vault| {
        *vault = Vault::default();
        Err::<(), _>(Error::not_found("no"))
    })
    .unwrap_err();
    assert_eq!(std::fs::read(file.path()).unwrap(), before);
}

#[test]
fn changes_at_once_lose_none() {
    let directory = directory();
    let file = SecretsFile::of_state_directory(directory.path());
    std::thread::scope(|scope| {
        for number in 0..16 {
            let file = &file;
            scope.spawn(move || {
                file.change(|vault| {
                    vault.insert(secret(&format!("KEY_{number}"), CANARY));
                    Ok(())
                })
                .unwrap();
            });
        }
    });
    assert_eq!(file.read().unwrap().iter().count(), 16);
}

#[test]
fn a_file_that_others_may_read_is_refused_with_what_to_do() {
    let (_directory, file) = with_text("[A]\nvalue = '12345678'\nhosts = ['a.example']\n");
    file.read().unwrap();
    for mode in [0o640, 0o604, 0o610] {
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let error = file.read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.hint().unwrap().contains("chmod 600"), "{error:?}");
    }
}

#[test]
fn a_file_of_somebody_else_is_refused() {
    let (_directory, file) = with_text("");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(file.path(), Some(12345), None).unwrap();
    assert!(file.read().unwrap_err().to_string().contains("belongs to another user"));
}

#[test]
fn a_broken_file_is_told_by_its_line_and_never_quoted() {
    for (text, line) in [
        ("[A]\nvalue = \"sk-canary\nhosts = []", 2),
        ("[A]\nvalue = 'sk-canary-1'\nhosts = ['a.example']\nsk-canary = 'x'\n", 4),
        ("\n[A]\nvalue = 'sk-canary-1'\nhosts = ['a.example']\n[A]\nvalue = 'sk-canary-2'", 5),
        ("[A]\nhosts = ['a.example']\nvalue = ['sk-canary']", 3),
        ("[A]\nhosts = ['a.example']\nvalue = 'canary'", 3),
        ("[A]\nvalue = 'sk-canary-1'\nhosts = [\n'a.example',\n'b c']", 5),
        ("[A]\nvalue = 'sk-canary-1'\nhosts = ['a.example']\nheader = 'X-Key: sk-canary-1'", 4),
        ("[A]\nvalue = 'sk-canary-1'\nhosts = ['a.example']\n['sk-canary']\nvalue = 'sk-canary-1'\nhosts = ['a']", 4),
        ("[A]\nvalue = 'sk-canary-1'\nhosts = []", 1),
    ] {
        let (_directory, file) = with_text(text);
        let error = file.read().unwrap_err();
        assert!(error.to_string().contains(&format!("secrets.toml line {line}: ")), "{text:?}: {error}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}

#[test]
fn a_directory_or_a_pipe_is_no_file_of_secrets() {
    let directory = directory();
    assert!(SecretsFile::new(directory.path()).read().is_err());
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(SecretsFile::new(pipe).read().unwrap_err().to_string().ends_with("is not a file"));
}
