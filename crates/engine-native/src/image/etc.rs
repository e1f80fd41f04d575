//! The `/etc` of the host image: made up where it says who and where one is, copied where programs cannot do without.
//!
//! Nothing is bound, and nothing is copied that is not for everybody: a file must belong to the owner of the system,
//! be readable by all, be small, and hold no key.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use images::Digest;
use images::confined::{Directory, Missing, Name};
use images::stamp::Stamps;
use sandbox::{GuestPath, Result};

use super::users::User;
use super::{HOME, HOST_NAME, SyntheticFile, USER_NAME, guest_path};

const LARGEST_FILE: u64 = 4 << 20;
const MOST_BYTES: usize = 32 << 20;
const MOST_ENTRIES: usize = 20_000;
const DEEPEST: usize = 8;

/// Copied if the host has them: the linker's cache, names of services and types, time zone, certificates, the choice
/// between alternatives, fonts, and what Debian's matplotlib does not start without.
const COPIED: [&str; 26] = [
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld-musl-x86_64.path",
    "ld-musl-aarch64.path",
    "localtime",
    "lsb-release",
    "matplotlibrc",
    "mime.types",
    "os-release",
    "php.ini",
    "php.d",
    "pki/ca-trust/extracted",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "terminfo",
    "timezone",
];

/// Of `ssl`, whose `private` stays where it is.
const COPIED_OF_SSL: [&str; 3] = ["ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"];

/// Settings that interpreters of distributions read through links from `/usr`: `java-17-openjdk`, `python3.11`, `php`.
const COPIED_IF_NAMED: [&str; 6] = ["java", "java-", "perl", "php", "python3", "R"];

/// Of the settings of PHP, those of servers, in which people put passwords.
const OF_SERVERS: [&str; 3] = ["apache2", "cgi", "fpm"];

/// Files, links and directories below `/etc`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Etc {
    pub directories: Vec<GuestPath>,
    pub links: Vec<(GuestPath, Vec<u8>)>,
    pub files: Vec<SyntheticFile>,
}

impl Etc {
    /// Named after all that is in it, so that two ways to the same tree meet.
    pub fn digest(&self) -> Digest {
        let mut all = Vec::new();
        let mut part = |kind: u8, mode: u32, path: &GuestPath, contents: &[u8]| {
            all.push(kind);
            all.extend(mode.to_le_bytes());
            for bytes in [path.as_bytes(), contents] {
                all.extend((bytes.len() as u64).to_le_bytes());
                all.extend(bytes);
            }
        };
        self.directories.iter().for_each(|path| part(b'd', 0, path, b""));
        self.links.iter().for_each(|(path, target)| part(b'l', 0, path, target));
        self.files.iter().for_each(|file| part(b'f', file.mode, &file.path, &file.contents));
        Digest::of(&all)
    }

    /// Writes everything to an empty directory that stands for `/etc`.
    pub fn write(&self, etc: &Directory) -> images::Result<()> {
        for path in &self.directories {
            etc.descend(names(path), Missing::Create).map_err(images::Error::io(format!("making {path}")))?;
        }
        for (path, target) in &self.links {
            within(etc, path, |parent, name| parent.symlink(name, target))?;
        }
        for file in &self.files {
            within(etc, &file.path, |parent, name| parent.create_file(name, file.mode)?.write_all(&file.contents))?;
        }
        Ok(())
    }
}

/// The components below `/etc`.
fn names(path: &GuestPath) -> Vec<Name<'_>> {
    path.components().skip(1).filter_map(Name::new).collect()
}

/// Does something to the last component of a path in the directory that holds it.
fn within(
    etc: &Directory,
    path: &GuestPath,
    act: impl FnOnce(&Directory, Name<'_>) -> std::io::Result<()>,
) -> images::Result<()> {
    let mut names = names(path);
    let Some(last) = names.pop() else { return Ok(()) };
    let parent = etc.descend(names, Missing::Create);
    parent.and_then(|parent| act(&parent, last)).map_err(images::Error::io(format!("making {path}")))
}

/// Describes `/etc` for a system whose root is `root`, which is `/` but in tests.
pub fn describe(root: &Path, stamps: &mut Stamps) -> Result<Etc> {
    let owner = root.metadata().map(|found| found.uid()).unwrap_or(0);
    let mut copy = Copy { root, owner, bytes: 0, entries: 0, stamps, etc: Etc::default() };
    for name in COPIED.iter().chain(&COPIED_OF_SSL) {
        copy.add(&Path::new("/etc").join(name), 0)?;
    }
    let mut named: Vec<PathBuf> = std::fs::read_dir(root.join("etc"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(Path::new("/etc").join(entry.ok()?.file_name())))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            COPIED_IF_NAMED.iter().any(|known| {
                let rest = name.strip_prefix(known.as_bytes());
                let is_version = |rest: &[u8]| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
                rest.is_some_and(|rest| known.ends_with('-') || is_version(rest))
            })
        })
        .collect();
    named.sort();
    for path in named {
        copy.add(&path, 0)?;
    }
    let mut etc = copy.etc;
    let shell = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|shell| root.join(&shell[1..]).exists());
    etc.files.extend(made_up(shell.unwrap_or("/bin/sh"), User::SANDBOX)?);
    Ok(etc)
}

/// What tells a program who it is and where; the host's own would tell who lives there.
pub fn made_up(shell: &str, user: User) -> Result<Vec<SyntheticFile>> {
    let User { id, group } = user;
    [
        (
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/root:{shell}\n\
                 {USER_NAME}:x:{id}:{group}:{USER_NAME}:{HOME}:{shell}\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("/etc/group", format!("root:x:0:\ntty:x:5:\n{USER_NAME}:x:{group}:\nnogroup:x:65534:\n")),
        ("/etc/hostname", format!("{HOST_NAME}\n")),
        ("/etc/hosts", hosts()),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n".to_owned()),
        ("/etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
    ]
    .into_iter()
    .map(|(path, contents)| {
        Ok(SyntheticFile { path: path.parse()?, contents: contents.into_bytes(), mode: 0o644 })
    })
    .collect()
}

fn hosts() -> String {
    format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost ip6-localhost ip6-loopback\n")
}

struct Copy<'a> {
    root: &'a Path,
    owner: u32,
    bytes: usize,
    entries: usize,
    stamps: &'a mut Stamps,
    etc: Etc,
}

impl Copy<'_> {
    /// Copies what lies at `path` of the system, or leaves it out.
    fn add(&mut self, path: &Path, depth: usize) -> Result<()> {
        let real = self.real(path);
        if depth == 0 {
            self.stamps.path(&real);
        }
        let Ok(found) = real.symlink_metadata() else { return Ok(()) };
        self.entries += 1;
        let name = path.file_name().unwrap_or_default();
        let of_server = path.starts_with("/etc/php") && OF_SERVERS.iter().any(|server| name == *server);
        if of_server || self.entries > MOST_ENTRIES || depth > DEEPEST {
            return Ok(());
        }
        if found.is_symlink() {
            return self.add_link(path, &real, depth);
        }
        self.add_object(path, &real, depth)
    }

    /// A link stays a link if it leads to what the sandbox has too, and is replaced by what it leads to otherwise.
    fn add_link(&mut self, path: &Path, real: &Path, depth: usize) -> Result<()> {
        let Ok(target) = real.read_link() else { return Ok(()) };
        let resolved = lexically_joined(path.parent().unwrap_or(Path::new("/")), &target);
        // Manual pages are half of all alternatives, and nobody reads them in a sandbox.
        if resolved.starts_with("/usr/share/man") || path.extension().is_some_and(|extension| extension == "gz") {
            return Ok(());
        }
        if resolved.starts_with("/usr") || resolved.starts_with("/etc") {
            self.etc.links.push((guest_path(path)?, target.as_os_str().as_bytes().to_vec()));
            return Ok(());
        }
        let elsewhere = self.real(&resolved);
        if depth == 0 {
            self.stamps.path(&elsewhere);
        }
        self.add_object(path, &elsewhere, depth)
    }

    fn add_object(&mut self, path: &Path, real: &Path, depth: usize) -> Result<()> {
        let Ok(found) = real.metadata() else { return Ok(()) };
        let mode = found.permissions().mode();
        if found.uid() != self.owner || mode & 0o004 == 0 {
            return Ok(());
        }
        if found.is_dir() {
            if depth > 0 {
                self.stamps.path(real);
            }
            self.etc.directories.push(guest_path(path)?);
            let mut names: Vec<_> = std::fs::read_dir(real)
                .into_iter()
                .flatten()
                .filter_map(|entry| Some(entry.ok()?.file_name()))
                .collect();
            names.sort();
            return names.into_iter().try_for_each(|name| self.add(&path.join(name), depth + 1));
        }
        if !found.is_file() || found.len() > LARGEST_FILE || self.bytes > MOST_BYTES {
            return Ok(());
        }
        let Ok(contents) = std::fs::read(real) else { return Ok(()) };
        if holds_a_key(&contents) {
            return Ok(());
        }
        self.bytes += contents.len();
        self.etc.files.push(SyntheticFile { path: guest_path(path)?, contents, mode: mode & 0o755 });
        Ok(())
    }

    fn real(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

fn holds_a_key(contents: &[u8]) -> bool {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    contents.windows(MARK.len()).any(|window| window == MARK)
}

fn lexically_joined(base: &Path, target: &Path) -> PathBuf {
    let mut joined = PathBuf::new();
    for part in base.join(target).components() {
        match part {
            Component::ParentDir => {
                joined.pop();
            }
            Component::CurDir => {}
            Component::RootDir | Component::Normal(_) | Component::Prefix(_) => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, contents: &str, mode: u32) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn paths(etc: &Etc) -> Vec<String> {
        etc.files.iter().map(|file| file.path.to_string()).collect()
    }

    #[test]
    fn secrets_and_the_hosts_own_data_stay_outside() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "etc/passwd", "ada:x:1000:1000:Ada:/home/ada:/bin/sh\n", 0o644);
        write(root, "etc/hosts", "10.0.0.7 database.internal\n", 0o644);
        write(root, "etc/shadow", "ada:$6$…", 0o640);
        write(root, "etc/pip.conf", "index-url = https://user:token@example.org", 0o644);
        write(root, "etc/ssl/private/host.key", "-----BEGIN PRIVATE KEY-----", 0o600);
        write(root, "etc/ssl/certs/ca.crt", "-----BEGIN CERTIFICATE-----", 0o644);
        write(root, "etc/ssl/certs/both.pem", "-----BEGIN RSA PRIVATE KEY-----", 0o644);
        write(root, "etc/ssl/certs/closed.pem", "-----BEGIN CERTIFICATE-----", 0o600);
        write(root, "etc/java-17-openjdk/management/jmxremote.password", "x", 0o600);
        write(root, "etc/java-17-openjdk/net.properties", "x", 0o644);
        write(root, "etc/javascript-common/x.conf", "x", 0o644);
        write(root, "etc/php-fpm.d/www.conf", "env[PASSWORD] = token", 0o644);
        write(root, "etc/php/8.2/fpm/pool.d/www.conf", "env[PASSWORD] = token", 0o644);
        write(root, "etc/php/8.2/cli/php.ini", "x", 0o644);
        let etc = describe(root, &mut Stamps::default()).unwrap();
        let copied: Vec<String> = paths(&etc).into_iter().filter(|path| path.matches('/').count() > 2).collect();
        assert_eq!(
            copied,
            ["/etc/ssl/certs/ca.crt", "/etc/java-17-openjdk/net.properties", "/etc/php/8.2/cli/php.ini"]
        );
        let all: Vec<u8> = etc.files.iter().flat_map(|file| file.contents.clone()).collect();
        let all = String::from_utf8(all).unwrap();
        for secret in ["ada", "database", "token", "$6$"] {
            assert!(!all.contains(secret), "{secret}");
        }
    }

    #[test]
    fn links_stay_links_where_their_targets_exist() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "var/lib/ca-certificates/ca-bundle.pem", "-----BEGIN CERTIFICATE-----", 0o644);
        fs::create_dir_all(root.join("etc/ssl")).unwrap();
        fs::create_dir_all(root.join("etc/alternatives")).unwrap();
        symlink("../../var/lib/ca-certificates", root.join("etc/ssl/certs")).unwrap();
        symlink("/usr/bin/mawk", root.join("etc/alternatives/awk")).unwrap();
        symlink("/usr/share/man/man1/mawk.1.gz", root.join("etc/alternatives/awk.1.gz")).unwrap();
        symlink("/home/ada/secret", root.join("etc/alternatives/odd")).unwrap();
        symlink("/usr/share/zoneinfo/Etc/UTC", root.join("etc/localtime")).unwrap();
        let etc = describe(root, &mut Stamps::default()).unwrap();
        let links: Vec<String> = etc.links.iter().map(|(path, _)| path.to_string()).collect();
        assert_eq!(links, ["/etc/alternatives/awk", "/etc/localtime"]);
        assert!(paths(&etc).contains(&"/etc/ssl/certs/ca-bundle.pem".to_owned()));
    }

    #[test]
    fn a_bare_system_still_has_its_users() {
        let root = tempfile::tempdir().unwrap();
        let etc = describe(root.path(), &mut Stamps::default()).unwrap();
        let passwd = etc.files.iter().find(|file| file.path.as_bytes() == b"/etc/passwd").unwrap();
        let text = std::str::from_utf8(&passwd.contents).unwrap();
        assert!(text.contains("sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n"), "{text}");
    }
}
