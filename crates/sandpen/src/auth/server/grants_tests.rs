use super::*;
use crate::auth::account::PasswordDigest;

struct World {
    _directory: tempfile::TempDir,
    accounts: Arc<AccountFile>,
    grants: Grants,
    agreed: Agreed,
}

fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let accounts = Arc::new(AccountFile::of_state_directory(directory.path()).unwrap());
    let records = Arc::new(RecordsFile::of_state_directory(directory.path()).unwrap());
    let password = PasswordDigest::new("correct horse").unwrap();
    let account = Account::new("alice-pen".parse().unwrap(), Scope::Run, password, SystemTime::now()).unwrap();
    let who = Who::Account { name: "alice".into(), revision: account.revision.clone() };
    accounts.create("alice".parse().unwrap(), account).unwrap();
    let elsewhere: Allowed = Arc::new(|who| match who {
        Who::Elsewhere { email: Some(_), .. } => Some(Scope::Read),
        Who::Elsewhere { email: None, .. } | Who::Account { .. } => None,
    });
    let grants = Grants::new(records, accounts.clone(), elsewhere, Duration::from_secs(60));
    let agreed = Agreed { client: "client".into(), who, scope: "sandpen:read sandpen:run".into() };
    World { _directory: directory, accounts, grants, agreed }
}

impl World {
    fn admit(&self, token: &str, now: SystemTime) -> Option<Principal> {
        Presented::access(token).and_then(|presented| self.grants.admit(&presented, now))
    }
}

#[test]
fn a_token_is_somebody_until_it_is_over() {
    let world = world();
    let now = SystemTime::now();
    let (_, issued) = world.grants.begin(&world.agreed, now).unwrap();
    let principal = world.admit(&issued.access, now).unwrap();
    assert_eq!((principal.owner.as_str(), principal.scopes.highest()), ("alice-pen", Some(Scope::Run)));
    assert_eq!(world.admit(&issued.access, now + Duration::from_secs(61)), None);
    assert_eq!(world.admit(&issued.refresh, now), None, "one that renews lets nobody in");
    for wrong in [format!("{}x", issued.access), issued.access[..issued.access.len() - 1].to_owned(), String::new()] {
        assert_eq!(world.admit(&wrong, now), None, "{wrong}");
    }
    let kept = std::fs::read_to_string(world._directory.path().join("oauth.json")).unwrap();
    for secret in [&issued.access[24..], &issued.refresh[24..40], &issued.refresh[70..]] {
        assert!(!kept.contains(secret), "{kept}");
    }
}

#[test]
fn what_renews_is_new_each_time_and_an_old_one_ends_everything() {
    let world = world();
    let now = SystemTime::now();
    let (_, first) = world.grants.begin(&world.agreed, now).unwrap();
    let second = world.grants.renew(&first.refresh, "client", None, now).unwrap().unwrap();
    assert_ne!(first.refresh, second.refresh);
    assert!(world.admit(&first.access, now).is_some() && world.admit(&second.access, now).is_some());
    assert!(world.grants.renew(&second.refresh, "other", None, now).unwrap().is_none(), "for another client");
    let forged = format!("{}{}", &first.refresh[..24], "A".repeat(86));
    assert!(world.grants.renew(&forged, "client", None, now).unwrap().is_none());
    assert!(world.admit(&second.access, now).is_some(), "what is made up ends nothing");
    let third = world.grants.renew(&second.refresh, "client", Some("sandpen:read"), now).unwrap().unwrap();
    assert_eq!(world.admit(&third.access, now).unwrap().scopes.highest(), Some(Scope::Read), "less was asked for");
    let wider = world.grants.renew(&third.refresh, "client", Some("sandpen:admin"), now).unwrap().unwrap();
    assert_eq!(wider.scopes.highest(), Some(Scope::Run), "never more than was granted");
    assert!(world.grants.renew(&first.refresh, "client", None, now).unwrap().is_none());
    for token in [&first.access, &second.access, &third.access, &wider.access] {
        assert_eq!(world.admit(token, now), None);
    }
    assert!(world.grants.renew(&wider.refresh, "client", None, now).unwrap().is_none());
}

#[test]
fn what_is_revoked_is_gone_at_once_and_others_stay() {
    let world = world();
    let now = SystemTime::now();
    let begin = || world.grants.begin(&world.agreed, now).unwrap().1;
    let (one, two, three) = (begin(), begin(), begin());
    world.grants.revoke("sandpen_at_000000000000_x").unwrap();
    world.grants.revoke(&one.access).unwrap();
    world.grants.revoke(&two.refresh).unwrap();
    assert!(world.admit(&one.access, now).is_none() && world.admit(&two.access, now).is_none());
    assert!(world.grants.renew(&one.refresh, "client", None, now).unwrap().is_none());
    assert!(world.admit(&three.access, now).is_some());
    let presented = Presented::access(&three.access).unwrap();
    assert!(world.grants.stands(&presented, now + Duration::from_secs(61)), "the grant outlives its token");
}

#[test]
fn an_account_that_is_gone_or_has_a_new_password_has_granted_nothing() {
    let world = world();
    let now = SystemTime::now();
    let (_, before) = world.grants.begin(&world.agreed, now).unwrap();
    world.accounts.set_password(&"alice".parse().unwrap(), PasswordDigest::new("battery staple").unwrap()).unwrap();
    assert_eq!(world.admit(&before.access, now), None);
    assert!(world.grants.renew(&before.refresh, "client", None, now).unwrap().is_none());
    let revision = world.accounts.current()[&"alice".parse().unwrap()].revision.clone();
    let who = Who::Account { name: "alice".into(), revision };
    let (_, after) = world.grants.begin(&Agreed { who, ..world.agreed.clone() }, now).unwrap();
    assert!(world.admit(&after.access, now).is_some());
    world.accounts.remove(&["alice".parse().unwrap()]).unwrap();
    assert_eq!(world.admit(&after.access, now), None);
}

#[test]
fn people_of_another_issuer_have_owners_of_their_own() {
    let world = world();
    let now = SystemTime::now();
    let elsewhere = |email: Option<&str>| {
        let who = Who::Elsewhere {
            issuer: "https://login.example".into(),
            subject: "alice-pen".into(),
            email: email.map(str::to_owned),
        };
        let agreed = Agreed { who, ..world.agreed.clone() };
        let issued = world.grants.begin(&agreed, now).unwrap().1;
        world.admit(&issued.access, now)
    };
    let principal = elsewhere(Some("alice@example.com")).unwrap();
    assert_eq!(principal.owner, subject::owner(&"https://login.example".parse().unwrap(), "alice-pen"));
    assert_eq!(principal.scopes.highest(), Some(Scope::Read), "no more than the operator lets them have");
    assert_eq!(elsewhere(None), None);
}
