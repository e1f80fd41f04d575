//! The server as a deputy: links that sandboxed code planted, and files that mean privilege.

use async_trait::async_trait;
use sandbox::{ByteRange, Layer, ListOptions, Owner, SandboxSpec, WriteOptions};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, Ran, Sandbox, guest, is_on_daemon, probe_bytes, probe_on_host, readable, root_tree};
use sandpen_tests::probe::Findings;
use sandpen_tests::{Result, is_root, mounts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::canary::CanaryDirectory;

pub const CHECKS: &[&dyn Check] = &[&ReadsThroughLinks, &WritesThroughLinks, &HardLinks, &SetId, &HostPaths];

/// The names that `probe links` makes.
const LINKS: &[&str] = &[
    "absolute",
    "relative",
    "directory",
    "chain",
    "magic-self",
    "magic-init",
    "magic-cwd",
    "dangling",
    "shown",
    "loop",
];

async fn with_links(lab: &Lab, canary: &CanaryDirectory) -> Result<Sandbox> {
    let sandbox = lab.sandbox().await?;
    let file = canary.file.to_string_lossy().into_owned();
    sandbox.probe(&["links", &file]).await?.complete()?;
    Ok(sandbox)
}

async fn content(stream: Box<dyn tokio::io::AsyncRead + Send + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A stream that breaks in the middle has still shown what it has shown.
    let _ = stream.take(1 << 20).read_to_end(&mut bytes).await;
    bytes
}

/// Calls every reading operation on links to a file of the host.
struct ReadsThroughLinks;

#[async_trait]
impl Check for ReadsThroughLinks {
    fn about(&self) -> About {
        About {
            id: "FS-08",
            tries: "read, stat, list and pack through links to a file of the host (CVE-2024-28185, CVE-2018-15664)",
            stopped_by: "file work happens inside the pivoted root, as the sandbox's user",
        }
    }

    fn controls(&self) -> Vec<Control> {
        if is_on_daemon() { vec![Control::Instrument] } else { vec![Control::Without(&[Layer::PivotedRoot])] }
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        let sandbox = with_links(lab, &canary).await?;
        let breaches = Self::look(sandbox, &canary).await?;
        Ok(Finding::from_breaches(&breaches, format!("{} links, 4 operations each", LINKS.len())))
    }

    /// Where the links lead to a file after all: the canary has a double inside, at the same path.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        let sandbox = with_links(lab, &canary).await?;
        sandbox.files().make_directory(&guest(&canary.path().to_string_lossy())?).await?;
        sandbox.write(&canary.file.to_string_lossy(), canary.secret.as_bytes(), 0o644).await?;
        Ok(Finding::from_breaches(&Self::look(sandbox, &canary).await?, "not seen"))
    }
}

impl ReadsThroughLinks {
    /// What every reading operation shows of the canary.
    async fn look(sandbox: Sandbox, canary: &CanaryDirectory) -> Result<Vec<String>> {
        let files = sandbox.files();
        let everything = ListOptions { recursive: true, max_entries: 10_000 };
        let mut breaches = Vec::new();
        for link in LINKS {
            for below in ["", "/canary"] {
                let path = guest(&format!("/workspace/{link}{below}"))?;
                let mut shown = Vec::new();
                if let Ok(read) = files.read(&path, ByteRange::default()).await {
                    shown.extend(content(read.stream).await);
                }
                if let Ok(stream) = files.pack(&path).await {
                    shown.extend(content(stream).await);
                }
                if String::from_utf8_lossy(&shown).contains(&canary.secret) {
                    breaches.push(format!("{path} shows the canary"));
                }
                let _ = files.stat(&path).await;
                if let Ok(listing) = files.list(&path, everything).await
                    && listing.entries.iter().any(|entry| entry.path.file_name() == Some(b"canary"))
                {
                    breaches.push(format!("{path} lists the canary"));
                }
            }
        }
        let packed = content(files.pack(&guest("/workspace")?).await?).await;
        if String::from_utf8_lossy(&packed).contains(&canary.secret) {
            breaches.push("a packed work directory holds the canary".to_owned());
        }
        sandbox.end().await?;
        breaches.extend(canary.changes()?);
        Ok(breaches)
    }
}

/// Calls every writing operation on links to a file and a directory of the host.
struct WritesThroughLinks;

#[async_trait]
impl Check for WritesThroughLinks {
    fn about(&self) -> About {
        About {
            id: "FS-09",
            tries: "write, make, move, remove and unpack through links to the host (CVE-2024-28189, CVE-2019-10152)",
            stopped_by: "file work happens inside the pivoted root, as the sandbox's user",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        let mut breaches = Vec::new();
        for link in LINKS {
            let sandbox = with_links(lab, &canary).await?;
            let files = sandbox.files();
            let path = guest(&format!("/workspace/{link}"))?;
            let below = guest(&format!("/workspace/{link}/made"))?;
            let own = guest("/workspace/own-file")?;
            for target in [&below, &path] {
                if let Ok(mut file) = files.write(target, WriteOptions::default()).await {
                    let _ = file.write_all(b"overwritten").await;
                    let _ = file.commit().await;
                }
                let _ = files.make_directory(target).await;
                if let Ok(mut archive) = files.unpack(target).await {
                    let _ = archive.write_all(&archive_with("unpacked", b"x", 0o644)).await;
                    let _ = archive.commit().await;
                }
            }
            sandbox.write("/workspace/own-file", b"own", 0o644).await?;
            let _ = files.rename(&own, &below).await;
            let _ = files.rename(&guest(&format!("/workspace/{link}/canary"))?, &guest("/workspace/stolen")?).await;
            let _ = files.remove(&guest(&format!("/workspace/{link}/canary"))?).await;
            sandbox.write("/workspace/own-file", b"own", 0o644).await?;
            let _ = files.rename(&own, &path).await;
            let _ = files.remove(&path).await;
            sandbox.end().await?;
            breaches.extend(canary.changes()?.into_iter().map(|change| format!("{link}: {change}")));
        }
        Ok(Finding::from_breaches(&breaches, format!("{} links, 9 operations each", LINKS.len())))
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        std::fs::remove_file(&canary.file)?;
        Ok(Finding::from_breaches(&canary.changes()?, "unchanged"))
    }
}

/// Gives files of elsewhere a second name in the work directory.
struct HardLinks;

impl HardLinks {
    fn judge(findings: &Findings, of_elsewhere: &[&str]) -> Vec<String> {
        let linked = |file: &&&str| findings.get(file) == Some("ok");
        of_elsewhere.iter().filter(linked).map(|file| format!("{file} has a second name here")).collect()
    }
}

#[async_trait]
impl Check for HardLinks {
    fn about(&self) -> About {
        About {
            id: "FS-11",
            tries: "hard links across mounts, to shared layers and devices; many names for one own file",
            stopped_by: "mounts of their own; shared trees are never on the writable one",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let elsewhere = ["/etc/passwd", "/usr/bin/env", "/proc/version", "/dev/null", "/proc/self/exe", "/tmp/probe"];
        let sandbox = lab.sandbox().await?;
        let arguments: Vec<&str> = ["hardlinks"].iter().chain(&elsewhere).copied().collect();
        let ran = sandbox.probe(&arguments).await?.complete()?;
        // /tmp/probe is the sandbox's own file: whether it can be linked is its own affair.
        let mut breaches = Self::judge(&ran.findings, &elsewhere[..4]);
        if ran.findings.number("own") != Some(1000) {
            breaches.push(format!("of 1,000 names for an own file {:?} were made", ran.findings.get("own")));
        }
        // The written policy: the tree shares no filesystem with the host, so files with many names are like others.
        sandbox.write("/workspace/own-text", b"text", 0o644).await?;
        let read = sandbox.files().read(&guest("/workspace/own-7")?, ByteRange::default()).await;
        if let Err(error) = read {
            breaches.push(format!("an own file with many names cannot be read: {error}"));
        }
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "none across, 1000 own"))
    }

    /// Two directories of the host on one filesystem.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let directory = tempfile::tempdir()?;
        let probe = probe_on_host(directory.path())?;
        let other = tempfile::tempdir()?;
        let file = other.path().join("file").to_string_lossy().into_owned();
        std::fs::write(&file, "x")?;
        let output =
            std::process::Command::new(probe).arg("hardlinks").arg(&file).current_dir(directory.path()).output()?;
        let findings = Findings::parse(&String::from_utf8_lossy(&output.stdout));
        Ok(Finding::from_breaches(&Self::judge(&findings, &[&file]), "not linked"))
    }
}

/// Brings set-id programs in by every way and runs them.
struct SetId;

impl SetId {
    fn judge(way: &str, ran: &Ran) -> Vec<String> {
        let mut breaches = Vec::new();
        for item in ["uid", "gid"] {
            if ran.findings.get(item) != Some("1000 1000 1000") {
                breaches.push(format!("{way}: {item} {:?}", ran.findings.get(item)));
            }
        }
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            if ran.findings.get(set) != Some("0000000000000000") {
                breaches.push(format!("{way}: {set} {:?}", ran.findings.get(set)));
            }
        }
        breaches
    }
}

#[async_trait]
impl Check for SetId {
    fn about(&self) -> About {
        About {
            id: "FS-13",
            tries: "runs set-user-id and set-group-id programs that came by upload, archive and image",
            stopped_by: "no new privileges, no capabilities, mounts without set-id",
        }
    }

    fn controls(&self) -> Vec<Control> {
        if is_root() { vec![Control::Instrument] } else { vec![Control::Without(&[Layer::NoCapabilities])] }
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let probe = probe_bytes()?;
        let sandbox = lab.sandbox().await?;
        sandbox.write("/workspace/uploaded", &probe, 0o6755).await?;
        let uploaded = sandbox.run_program("/workspace/uploaded", &["ids"], "").await?.complete()?;
        let mut breaches = Self::judge("upload", &uploaded);
        let stat = sandbox.files().stat(&guest("/workspace/uploaded")?).await?;
        if stat.mode & 0o7000 != 0 {
            breaches.push(format!("upload keeps mode {:o}", stat.mode));
        }
        let mut archive = sandbox.files().unpack(&guest("/workspace/unpacked")?).await?;
        archive.write_all(&archive_with("program", &probe, 0o6755)).await?;
        archive.commit().await?;
        let unpacked = sandbox.run_program("/workspace/unpacked/program", &["ids"], "").await?.complete()?;
        breaches.extend(Self::judge("archive", &unpacked));
        let held = sandbox.hold(0, 0).await?;
        for mount in mounts::of(&held.process.pid.to_string()) {
            let device = mount.kind == "devpts" || (mount.kind == "devtmpfs" && mount.root != "/");
            // A daemon mounts the image as it is; what programs can write to is ours to say.
            if is_on_daemon() && !["/tmp", "/home/sandbox", "/workspace", "/dev/shm", "/run"].contains(&&*mount.point) {
                continue;
            }
            for option in ["nosuid", "nodev"] {
                let must_work_as_device = device && option == "nodev";
                if !mount.has(option) && !must_work_as_device {
                    breaches.push(format!("without {option}: {mount}"));
                }
            }
        }
        held.release().await?;
        sandbox.end().await?;

        let tree = root_tree(&probe)?;
        readable(&tree.path().join("bin/probe"), 0o6755)?;
        let spec = SandboxSpec { image: lab.image(&tree)?, ..SandboxSpec::new(Owner::local()) };
        let sandbox = lab.bare_sandbox_of(spec).await?;
        let from_image = sandbox.run_program("/bin/probe", &["ids"], "").await?.complete()?;
        breaches.extend(Self::judge("image", &from_image));
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "ids and capabilities stay as they are"))
    }

    /// The same program and judgement on the host, as an ordinary user.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        use std::os::unix::process::CommandExt;
        let directory = tempfile::tempdir()?;
        readable(directory.path(), 0o755)?;
        let probe = probe_on_host(directory.path())?;
        readable(&probe, 0o4755)?;
        let output = std::process::Command::new(probe).arg("ids").uid(1000).gid(1000).output()?;
        let findings = Findings::parse(&String::from_utf8_lossy(&output.stdout));
        let uid = findings.get("uid").unwrap_or_default().to_owned();
        let breaches: Vec<String> = (uid != "1000 1000 1000").then(|| format!("uid {uid}")).into_iter().collect();
        Ok(Finding::from_breaches(&breaches, "unchanged"))
    }
}

/// Asks for paths of the host.
struct HostPaths;

#[async_trait]
impl Check for HostPaths {
    fn about(&self) -> About {
        About {
            id: "FS-15",
            tries: "asks for mounts and copies of host paths beside and above the allowed ones",
            stopped_by: "the operator's list, compared by component",
        }
    }

    fn controls(&self) -> Vec<Control> {
        Vec::new()
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        Ok(Finding::Skip("there are no host mounts: a request cannot name a path of the host".to_owned()))
    }
}

/// A tar archive with one file in it, made by hand so that its mode is what we say.
pub fn archive_with(name: &str, bytes: &[u8], mode: u32) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}\0"));
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", bytes.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}
