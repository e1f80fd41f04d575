use std::time::SystemTime;

use super::*;
use crate::id::{InstanceId, Owner};
use crate::image::{Image, ImageProgram};
use crate::service::clock::Moment;
use crate::spec::{Insistence, Lifetime, Persistence, Role, SandboxSpec};

fn record() -> Record {
    let mut spec = SandboxSpec::new("owner:7".parse().unwrap());
    spec.persistence = Persistence::Persistent;
    spec.name = Some("lab".parse().unwrap());
    spec.image = Image::Archive("/images/röt.tar".into());
    spec.lifetime = Lifetime { idle: Duration::from_millis(1500), total: Some(Duration::from_secs(9)) };
    spec.work_directory = Some("/srv/a b".parse().unwrap());
    spec.environment.insert("KEY", "a \"b\"\n\u{1f980}").unwrap();
    Record {
        id: SandboxId::random().unwrap(),
        engine: "fake".to_owned(),
        instance: InstanceId::random().unwrap(),
        state: RecordState::Creating,
        spec,
        program: ImageProgram::new(vec!["/entry".to_owned()], vec!["a b".to_owned(), String::new()]),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        boot: "boot".to_owned(),
        created: Moment(5),
        total_until: Some(Moment(9005)),
    }
}

fn ledger() -> (tempfile::TempDir, Ledger) {
    let directory = tempfile::TempDir::new().unwrap();
    let ledger = Ledger::open(directory.path()).unwrap();
    (directory, ledger)
}

#[test]
fn a_record_comes_back_as_it_went() {
    let mut record = record();
    let roles = [Role::ImageUser(Insistence::Must), Role::ImageUser(Insistence::IfPossible), Role::Guest];
    for role in roles {
        record.spec.role = role;
        let bytes = record::encode(&record).unwrap();
        assert_eq!(record::decode(&bytes, &record.name()), Ok(Some(record.clone())));
    }
    let text = String::from_utf8(record::encode(&record).unwrap()).unwrap();
    assert!(!text.contains("programs"), "a guest's is one that older versions wrote: {text}");
}

#[test]
fn any_part_of_a_record_is_garbage_and_no_panic() {
    let record = record();
    let bytes = record::encode(&record).unwrap();
    for end in 0..bytes.len() {
        assert!(record::decode(&bytes[..end], &record.name()).is_err(), "{end} bytes were taken");
    }
    for position in 0..bytes.len() {
        for byte in [0, b'"', b'9', 0xff] {
            let mut changed = bytes.clone();
            changed[position] = byte;
            let _ = record::decode(&changed, &record.name());
        }
    }
}

#[tokio::test]
async fn writing_replaces_and_removing_leaves_nothing() {
    let (directory, ledger) = ledger();
    let mut record = record();
    let lock = ledger.lock(&record.id).await.unwrap();
    ledger.write(&record, &lock).await.unwrap();
    record.state = RecordState::Live;
    ledger.write(&record, &lock).await.unwrap();
    assert_eq!(ledger.scan(&record.spec.owner).unwrap(), [record.clone()]);
    ledger.lease(&record.id).make(Moment(1)).unwrap();
    ledger.remove(&record.name(), lock).await.unwrap();
    assert_eq!(ledger.read(&record.name()).unwrap(), Reading::Nothing);
    assert_eq!(fs::read_dir(directory.path().join("ledger")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_lock_excludes_and_survives_the_removal_of_its_file() {
    let (_directory, ledger) = ledger();
    let id = SandboxId::random().unwrap();
    let first = ledger.try_lock(&id).unwrap().unwrap();
    assert!(ledger.try_lock(&id).unwrap().is_none());
    let waiting = tokio::spawn({
        let (ledger, id) = (ledger.clone(), id.clone());
        async move { ledger.lock(&id).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    ledger.remove(&RecordName::new(&Owner::local(), &id), first).await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert!(ledger.try_lock(&id).unwrap().is_none(), "the lock is on a file that is gone");
    drop(second);
    assert!(ledger.try_lock(&id).unwrap().is_some());
}

#[test]
fn what_is_not_a_file_is_put_aside() {
    let (directory, ledger) = ledger();
    let place = |id: &SandboxId| directory.path().join("ledger").join(RecordName::new(&Owner::local(), id).file_name());
    let [folder, link, fifo] = [(); 3].map(|()| SandboxId::random().unwrap());
    fs::create_dir(place(&folder)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place(&link)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, place(&fifo), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(ledger.scan(&Owner::local()).unwrap(), []);
    assert_eq!(ledger.names().unwrap(), []);
}

#[test]
fn remains_without_a_record_are_cleared_but_not_those_in_use() {
    let (directory, ledger) = ledger();
    let place = |id: &SandboxId, extension| directory.path().join("ledger").join(format!("{id}.{extension}"));
    let [dead, busy] = [(); 2].map(|()| SandboxId::random().unwrap());
    for extension in ["new", "lease", "lock"] {
        fs::write(place(&dead, extension), "").unwrap();
        fs::write(place(&busy, extension), "").unwrap();
    }
    let _held = ledger.try_lock(&busy).unwrap().unwrap();
    ledger.names().unwrap();
    for extension in ["new", "lease", "lock"] {
        assert!(!place(&dead, extension).exists(), "{extension}");
        assert!(place(&busy, extension).exists(), "{extension}");
    }
}

#[test]
fn a_lease_is_shared_by_users_and_taken_alone_by_the_end() {
    let (directory, ledger) = ledger();
    let id = SandboxId::random().unwrap();
    let lease = ledger.lease(&id);
    assert!(lease.hold().unwrap().is_none(), "there is no sandbox");
    lease.make(Moment(7)).unwrap();
    assert_eq!((lease.last_used(), lease.hold().unwrap().unwrap().engine_deadline()), (Some(Moment(7)), None));
    let (first, second) = (lease.hold().unwrap().unwrap(), lease.hold().unwrap().unwrap());
    assert!(lease.hold_alone().unwrap().is_none());
    first.touch(Moment(8)).unwrap();
    second.set_engine_deadline(Moment(u64::MAX)).unwrap();
    assert_eq!((second.last_used(), first.engine_deadline()), (Some(Moment(8)), Some(Moment(u64::MAX))));
    drop((first, second));
    let alone = lease.hold_alone().unwrap().unwrap();
    assert!(lease.hold().is_err());
    fs::remove_file(directory.path().join("ledger").join(format!("{id}.lease"))).unwrap();
    assert!(!alone.is_linked());
    assert!(lease.hold().unwrap().is_none());
}

#[test]
fn records_of_two_owners_stay_apart() {
    let mut record = record();
    record.spec.owner = Owner::local();
    let bytes = record::encode(&record).unwrap();
    let other = SandboxId::random().unwrap();
    let [elsewhere, of_another] =
        [RecordName::new(&Owner::local(), &other), RecordName::new(&"somebody".parse().unwrap(), &record.id)];
    for name in [elsewhere, of_another] {
        assert!(record::decode(&bytes, &name).is_err(), "a record is only believed under its own name");
    }
}
