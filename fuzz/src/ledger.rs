//! The ledger: whatever lies where a record should be, the service starts, and works.

use std::time::Duration;

use sandbox::engine::fake::FakeHost;
use sandbox::{InstanceId, Owner, SandboxService, ServiceSettings};

use crate::bytes::scratch;

pub const SEEDS: &[&[u8]] = &[
    br#"{"version":1,"id":"sb-7k2m9x4bqhtw3ecd","engine":"fake","instance":"in-7k2m9x4bqhtw3ecd","state":"live","created_at_ms":1,"boot":"b","created_monotonic_ms":1,"owner":"local","image":"host","network":"none","idle_ms":1000,"limits":{"cpu_millis":1000,"memory":536870912,"processes":128,"disk":1073741824,"inodes":200000,"open_files":1024},"environment":{},"work_directory":"/workspace"}"#,
    br#"{"version":1,"id":"sb-7k2m9x4bqhtw3ecd","engine":"fake","instance":"in-7k2m9x4bqhtw3ecd","state":"creating","created_at_ms":18446744073709551615,"boot":"","created_monotonic_ms":18446744073709551615,"total_until_monotonic_ms":18446744073709551615,"owner":"local","name":"a","image":"dir:/x","network":"none","idle_ms":18446744073709551615,"total_ms":18446744073709551615,"limits":{"cpu_millis":4294967295,"memory":18446744073709551615,"processes":4294967295,"disk":18446744073709551615,"inodes":18446744073709551615,"open_files":18446744073709551615},"environment":{"A":"b"},"work_directory":"/"}"#,
    br#"{"version":2}"#,
    b"{",
    b"",
];

/// The bytes are the record of one persistent sandbox.
pub fn ledger(data: &[u8]) {
    let directory = scratch();
    let ledger = directory.path().join("ledger");
    std::fs::create_dir(&ledger).expect("an empty directory takes another");
    std::fs::write(ledger.join("sb-7k2m9x4bqhtw3ecd.json"), data).expect("an empty directory takes a file");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let instance = InstanceId::random().expect("random numbers");
        let settings = ServiceSettings::new(directory.path(), instance);
        let working = async {
            let service = SandboxService::start(FakeHost::new().engine(), settings).await?;
            let owner = Owner::local();
            let listed = service.list(&owner).await?;
            // The fake has no such sandbox, and engines are the source of truth.
            assert!(listed.is_empty(), "a sandbox that the engine does not have: {listed:?}");
            let spec = sandbox::SandboxSpec::new(owner.clone());
            let info = service.create(&owner, spec).await?;
            service.stop(&owner, &info.id).await?;
            service.shutdown().await
        };
        let worked = tokio::time::timeout(Duration::from_secs(20), working).await;
        assert!(matches!(worked, Ok(Ok(()))), "a bad record keeps the service from working: {worked:?}");
    });
}
