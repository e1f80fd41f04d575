//! An OCI bundle for crun and runc, with the walls that ours has and theirs can have.

use std::cell::Cell;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandbox::{Error, Result, SandboxId};
use serde_json::{Value, json};

/// A directory of ours under the temporary one, removed when dropped.
#[derive(Debug)]
pub struct Bundle {
    directory: PathBuf,
    count: Cell<u32>,
}

impl Bundle {
    pub fn make(python: Option<&Path>, prefix: Option<&Path>) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("sandpen-bench-{}", SandboxId::random()?));
        let bundle = Self { directory, count: Cell::new(0) };
        bundle
            .write(python, prefix)
            .map_err(|cause| Error::unavailable("the bundle for crun and runc cannot be written").with_cause(cause))?;
        Ok(bundle)
    }

    /// The command that runs it once.
    pub fn command(&self, runtime: &str) -> Result<Command> {
        let count = self.count.get();
        self.count.set(count + 1);
        let mut command = Command::new(runtime);
        command.arg("--root").arg(self.directory.join(runtime)).arg("run").arg("--bundle").arg(&self.directory);
        command.arg(format!("sandpen-bench-{}-{count}", std::process::id()));
        Ok(command)
    }

    fn write(&self, python: Option<&Path>, prefix: Option<&Path>) -> std::io::Result<()> {
        let root = self.directory.join("rootfs");
        for name in ["proc", "dev", "tmp", "workspace", "usr"] {
            std::fs::create_dir_all(root.join(name))?;
        }
        let mut trees = vec![PathBuf::from("/usr")];
        for name in ["bin", "sbin", "lib", "lib64"] {
            let path = Path::new("/").join(name);
            match std::fs::read_link(&path) {
                Ok(target) => symlink(target, root.join(name))?,
                Err(_) if path.exists() => trees.push(path),
                Err(_) => {}
            }
        }
        trees.extend(prefix.map(Path::to_owned));
        for tree in &trees {
            std::fs::create_dir_all(root.join(tree.strip_prefix("/").unwrap_or(tree)))?;
        }
        let config = config(python.unwrap_or(Path::new("/bin/true")), &trees);
        std::fs::write(self.directory.join("config.json"), config.to_string())
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn config(python: &Path, trees: &[PathBuf]) -> Value {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}),
        json!({"destination": "/workspace", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=777"]}),
    ];
    mounts.extend(trees.iter().map(|tree| {
        json!({"destination": tree, "type": "bind", "source": tree, "options": ["rbind", "ro", "nosuid", "nodev"]})
    }));
    let empty: [&str; 0] = [];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 1000, "gid": 1000},
            "args": [python, "-c", "print(1)"],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/workspace",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": empty, "effective": empty, "inheritable": empty, "permitted": empty, "ambient": empty,
            },
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "sandbox",
        "mounts": mounts,
        "linux": {
            "namespaces": [
                {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "cgroup"},
            ],
            "resources": {
                "memory": {"limit": 512u64 << 20},
                "cpu": {"quota": 100_000, "period": 100_000},
                "pids": {"limit": 128},
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger"],
            "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus"],
        },
    })
}
