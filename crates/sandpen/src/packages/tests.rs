use std::collections::HashMap;
use std::fs;

use sandbox::ErrorKind;

use super::*;

/// A machine with these variables and these files, below its root or, with `~/` before, in a home.
fn surroundings(variables: &[(&str, &str)], files: &[(&str, &str)]) -> (tempfile::TempDir, Surroundings) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.replace("~/", "home/"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let variables: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let surroundings = Surroundings {
        variables: Box::new(move |name| variables.get(name).cloned()),
        home: Some(root.path().join("home")),
        root: root.path().to_owned(),
    };
    (root, surroundings)
}

fn python(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<(PackageIndex, Vec<Secret>)> {
    let (_root, surroundings) = surroundings(variables, files);
    Found::python(&surroundings)?.into_index(PackageLanguage::Python)
}

fn javascript(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<(PackageIndex, Vec<Secret>)> {
    let (_root, surroundings) = surroundings(variables, files);
    npm::read(&surroundings)?.into_index(PackageLanguage::JavaScript)
}

fn listed(rules: &[HostRule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

#[test]
fn without_settings_it_is_the_usual_index_and_nothing_near() {
    let (index, secrets) = python(&[], &[]).unwrap();
    assert_eq!(index.urls, [PYPI]);
    assert_eq!(listed(&index.hosts), ["pypi.org:443", "files.pythonhosted.org:443"]);
    assert!(index.private_hosts.is_empty() && index.secrets.is_empty() && secrets.is_empty());
    let (index, _) = javascript(&[], &[]).unwrap();
    assert_eq!((index.urls, listed(&index.hosts)), (vec![NPM.to_owned()], vec!["registry.npmjs.org:443".to_owned()]));
    assert!(index.private_hosts.is_empty());
}

#[test]
fn pip_is_read_from_its_places_in_their_order() {
    let files = [
        ("etc/pip.conf", "[global]\nindex-url = https://machine.example/simple\ntrusted-host = a.example\n"),
        (
            "~/.config/pip/pip.conf",
            "[global]\nindex_url = https://user.example/simple\n[install]\nextra-index-url =\n    https://more.example/simple\n",
        ),
    ];
    let (index, _) = python(&[], &files).unwrap();
    assert_eq!(index.urls, ["https://user.example/simple", "https://more.example/simple"]);
    assert_eq!(index.trusted_hosts, ["a.example"]);
    assert_eq!(listed(&index.private_hosts), ["user.example:443", "more.example:443"]);
    let (index, _) = python(&[("PIP_INDEX_URL", "https://variable.example/simple")], &files).unwrap();
    assert_eq!(index.urls[0], "https://variable.example/simple");
    let (index, _) = python(&[("PIP_CONFIG_FILE", "/dev/null")], &files).unwrap();
    assert_eq!(index.urls, [PYPI]);
}

#[test]
fn uv_goes_before_pip() {
    let toml = "[[index]]\nname = \"own\"\nurl = \"https://uv.example/simple\"\ndefault = true\n[[index]]\nurl = \"https://torch.example/cpu\"\n";
    let files =
        [("~/.config/uv/uv.toml", toml), ("etc/pip.conf", "[global]\nindex-url = https://pip.example/simple\n")];
    let (index, _) = python(&[], &files).unwrap();
    assert_eq!(index.urls, ["https://uv.example/simple", "https://torch.example/cpu"]);
    let variables =
        [("UV_DEFAULT_INDEX", "https://variable.example/simple"), ("UV_INDEX", "one=https://one.example/s")];
    let (index, _) = python(&variables, &files).unwrap();
    assert_eq!(index.urls, ["https://variable.example/simple", "https://one.example/s"]);
}

#[test]
fn npm_is_read_with_its_scopes_and_logins() {
    let files = [(
        "~/.npmrc",
        "registry=https://npm.example/main/\n@own:registry=https://own.example:8443/\n//own.example:8443/:_authToken=${TOKEN}\n",
    )];
    let (index, secrets) = javascript(&[("TOKEN", "npm-canary-token")], &files).unwrap();
    assert_eq!(index.urls, ["https://npm.example/main/"]);
    assert_eq!(index.scopes, [("@own".to_owned(), "https://own.example:8443/".to_owned())]);
    assert_eq!(secrets.len(), 1);
    assert_eq!(secrets[0].value().expose(), "npm-canary-token");
    assert_eq!(listed(secrets[0].hosts()), ["own.example:8443"]);
    assert!(!format!("{index:?} {secrets:?}").contains("canary"));
}

#[test]
fn a_login_of_npm_is_found_by_the_path_as_it_is_written() {
    let text = "registry=https://npm.example/api/Team/\n//NPM.example/api/Team/:_authToken=a-token-of-npm\n";
    let (_, secrets) = javascript(&[], &[("~/.npmrc", text)]).unwrap();
    assert_eq!(secrets.iter().map(|secret| secret.value().expose()).collect::<Vec<_>>(), ["a-token-of-npm"]);
    let (_, secrets) = javascript(&[], &[("~/.npmrc", &*text.replace("Team/:", "team/:"))]).unwrap();
    assert_eq!(secrets.len(), 0);
}

#[test]
fn a_login_becomes_a_secret_and_leaves_no_trace() {
    let (index, secrets) =
        python(&[("PIP_INDEX_URL", "https://me:canary-password@index.example/simple")], &[]).unwrap();
    assert_eq!(index.urls, ["https://index.example/simple"]);
    assert_eq!(secrets[0].value().expose(), STANDARD.encode("me:canary-password"));
    assert_eq!(index.secrets.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["SANDPEN_INDEX_PYTHON_0"]);
    assert!(!format!("{index:?} {secrets:?}").contains("canary"));
}

#[test]
fn a_login_never_goes_out_unencrypted_nor_to_somebody_else() {
    for (name, value) in [
        ("PIP_INDEX_URL", "http://me:canary-password@127.0.0.1:3141/simple"),
        ("UV_INDEX", "https://a:canary-one@index.example/a https://b:canary-two@index.example/b"),
    ] {
        let error = python(&[(name, value)], &[]).unwrap_err();
        assert!(!format!("{error} {:?}", error.hint()).contains("canary"), "{error}");
    }
}

#[test]
fn an_index_without_encryption_must_be_trusted_by_its_client() {
    let plain = ("PIP_INDEX_URL", "http://index.example/simple");
    assert_eq!(python(&[plain], &[]).unwrap_err().kind(), ErrorKind::Denied);
    let (index, _) = python(&[plain, ("PIP_TRUSTED_HOST", "index.example")], &[]).unwrap();
    assert_eq!(listed(&index.hosts), ["index.example:80"]);
    let (index, _) = python(&[("PIP_INDEX_URL", "http://127.0.0.1:3141/simple")], &[]).unwrap();
    assert_eq!(listed(&index.private_hosts), ["127.0.0.1:3141"]);
}
