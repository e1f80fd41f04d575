use std::os::unix::fs::PermissionsExt;

use super::*;

fn file() -> (tempfile::TempDir, TokenFile) {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::of_state_directory(directory.path());
    (directory, file)
}

fn new(name: &str) -> NewToken {
    NewToken {
        name: Some(name.parse().unwrap()),
        owner: "alice".parse().unwrap(),
        scope: Scope::Run,
        lives: Some(Duration::from_secs(60)),
    }
}

#[test]
fn what_is_kept_knows_the_token_and_does_not_tell_it() {
    let (_directory, file) = file();
    let now = SystemTime::now();
    let (token, id, known) = file.create(new("a \"quoted\" \\ name"), now).unwrap();
    assert_eq!(TokenId::of(token.reveal()).as_ref(), Some(&id));
    assert_eq!(format!("{token:?}"), "Token");
    let kept = std::fs::read_to_string(file.file().path()).unwrap();
    let secret = token.reveal().rsplit_once(&format!("{id}_")).unwrap().1;
    assert!(secret.len() == 43 && !kept.contains(secret), "{kept}");
    assert_eq!(std::fs::metadata(file.file().path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(file.read().unwrap(), Tokens::from([(id, known.clone())]));
    assert!(known.digest.is(&TokenDigest::of(token.reveal().as_bytes())));
    assert!(!known.digest.is(&TokenDigest::of(format!("{}x", token.reveal()).as_bytes())));
    assert!(!known.is_over(now) && known.is_over(now + Duration::from_secs(61)));
}

#[test]
fn one_that_is_revoked_is_gone_and_the_others_stay() {
    let (_directory, file) = file();
    let made: Vec<TokenId> =
        (0..3).map(|number| file.create(new(&number.to_string()), SystemTime::now()).unwrap().1).collect();
    file.revoke(&made[..1]).unwrap();
    let both = file.revoke(&[made[1].clone(), made[0].clone()]).unwrap_err();
    assert_eq!(both.kind(), sandbox::ErrorKind::NotFound);
    let left: Vec<TokenId> = file.read().unwrap().into_keys().collect();
    let mut expected = made[1..].to_vec();
    expected.sort();
    assert_eq!(left, expected, "a list with a wrong one revokes none");
}

#[test]
fn a_token_given_for_its_id_is_not_repeated() {
    let error = "sandpen_0123456789ab_c2VjcmV0".parse::<TokenId>().unwrap_err();
    assert!(!error.to_string().contains("c2VjcmV0") && !error.hint().unwrap().contains("c2VjcmV0"));
    for text in ["", "0123456789aB", "0123456789a", "../../../etc"] {
        assert!(text.parse::<TokenId>().is_err(), "{text:?}");
    }
    for text in ["", "sandpen_", "sandpen_0123456789ab", "Sandpen_0123456789ab_x", "sandpen_0123456789ag_x"] {
        assert_eq!(TokenId::of(text), None, "{text:?}");
    }
}

#[test]
fn a_file_that_makes_no_sense_is_refused() {
    let good = format!("[0123456789ab]\nowner = 'a'\nscope = 'run'\nsha256 = '{}'\ncreated = 1\n", "0".repeat(64));
    for (text, is_right) in [
        (good.clone(), true),
        (good.replace("'run'", "'walk'"), false),
        (good.replace("'a'", "''"), false),
        (good.replace("0000'", "000'"), false),
        (good.replace("0000'", "00+0'"), false),
        (good.replace("0123456789ab", "zz"), false),
        (format!("{good}more = 1\n"), false),
        ("[".to_owned(), false),
    ] {
        let (_directory, file) = file();
        std::fs::write(file.file().path(), &text).unwrap();
        std::fs::set_permissions(file.file().path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(file.read().is_ok(), is_right, "{text}");
    }
}
