//! A process of a container as the host sees it. The daemon of the tests is on this machine, and nobody inside can write here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One process, by what the kernel says of it.
#[derive(Clone, Debug)]
pub struct Seen {
    place: PathBuf,
}

impl Seen {
    /// The process with this word among its arguments.
    pub fn marked(mark: &str) -> Option<Self> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
        let is_it = |place: &PathBuf| {
            let arguments = fs::read(place.join("cmdline")).unwrap_or_default();
            arguments.split(|&byte| byte == 0).any(|argument| argument == mark.as_bytes())
        };
        let numbered =
            |place: &PathBuf| place.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
        processes.filter(numbered).find(is_it).map(|place| Self { place })
    }

    /// gVisor that holds a container, by the container's id. Numbers of processes that a daemon tells are its own namespace's.
    pub fn gvisor(container: &str) -> Option<Self> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
        let is_it = |place: &PathBuf| {
            let arguments = fs::read(place.join("cmdline")).unwrap_or_default();
            arguments.starts_with(b"runsc-sandbox\0")
                && arguments.split(|&byte| byte == 0).any(|argument| argument == container.as_bytes())
        };
        processes.into_iter().find(is_it).map(|place| Self { place })
    }

    pub fn runs(&self) -> bool {
        self.status().get("State").is_some_and(|state| !state.starts_with('Z'))
    }

    pub fn status(&self) -> BTreeMap<String, String> {
        let pairs = self.text("status");
        let pairs = pairs.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
    }

    pub fn field(&self, name: &str) -> String {
        self.status().remove(name).unwrap_or_default()
    }

    /// Whether it has a namespace of this kind that is neither ours nor the daemon's. The daemon of the tests has some of its
    /// own, and calls those the host's.
    pub fn is_apart(&self, kind: &str) -> bool {
        let of = |place: &Path| fs::read_link(place.join("ns").join(kind)).ok();
        let others = [of(Path::new("/proc/self")), of(&self.keeper().place)];
        of(&self.place).is_some_and(|theirs| !others.contains(&Some(theirs)))
    }

    /// What the daemon has started to look after its container.
    fn keeper(&self) -> Self {
        let mut place = self.place.clone();
        loop {
            let above = Self { place: place.clone() }.field("PPid");
            assert!(!above.is_empty() && above != "0", "{} is nobody's container", self.place.display());
            place = Path::new("/proc").join(above);
            let name = fs::read_to_string(place.join("comm")).unwrap_or_default();
            if ["containerd-shim", "conmon"].iter().any(|keeper| name.starts_with(keeper)) {
                return Self { place };
            }
        }
    }

    /// Mount points with their options and kinds of file system.
    pub fn mounts(&self) -> Vec<(String, String, String)> {
        let table = self.text("mounts");
        let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let fields = fields.filter(|fields| fields.len() > 3);
        fields.map(|fields| (fields[1].to_owned(), fields[3].to_owned(), fields[2].to_owned())).collect()
    }

    pub fn network_devices(&self) -> Vec<String> {
        let table = self.text("net/dev");
        let mut names: Vec<String> =
            table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect();
        // Kernels make these in every namespace, down and without a way anywhere.
        names.retain(|name| {
            !["tunl", "sit", "ip6tnl", "gre", "erspan", "ip_vti", "ip6_vti", "ip6gre"]
                .iter()
                .any(|kind| name.starts_with(kind))
        });
        names.sort();
        names
    }

    /// Numbers of its open descriptors.
    pub fn descriptors(&self) -> Vec<u32> {
        let listed = fs::read_dir(self.place.join("fd")).unwrap().filter_map(Result::ok);
        let mut numbers: Vec<u32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Hard and soft, as one line of `limits`.
    pub fn limit(&self, name: &str) -> String {
        let table = self.text("limits");
        let line = table.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    pub fn environment(&self) -> String {
        self.text("environ").replace('\0', "\n")
    }

    /// Of the control group that holds it: the first of these files that there is, of version 2 or 1.
    pub fn group(&self, controller: &str, names: &[&str]) -> String {
        let table = self.text("cgroup");
        let of = |line: &str| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let root = match controllers {
                "" => "/sys/fs/cgroup".to_owned(),
                held if held.split(',').any(|one| one == controller) => format!("/sys/fs/cgroup/{held}"),
                _ => return None,
            };
            names.iter().find_map(|name| fs::read_to_string(format!("{root}{path}/{name}")).ok())
        };
        table.lines().find_map(of).unwrap_or_default().trim().to_owned()
    }

    /// What it finds under a name.
    pub fn sees(&self, path: &str) -> bool {
        fs::symlink_metadata(self.place.join("root").join(path.trim_start_matches('/'))).is_ok()
    }

    fn text(&self, file: &str) -> String {
        let bytes = fs::read(self.place.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
