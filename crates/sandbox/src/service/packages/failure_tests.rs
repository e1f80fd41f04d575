use super::super::PackageIndex;
use super::*;
use crate::id::Owner;
use crate::image::Image;
use crate::network::{Denial, Refusal};
use crate::package::{PackageLanguage, Packages};

fn request() -> Request {
    Request {
        key: String::new(),
        owner: Owner::local(),
        image: Image::Host,
        identity: String::new(),
        packages: Packages::new(PackageLanguage::Python, ["six"]).unwrap(),
        index: PackageIndex {
            urls: vec!["https://index.example/simple".to_owned()],
            hosts: vec!["index.example".parse().unwrap()],
            ..PackageIndex::default()
        },
    }
}

fn ran(stdout: &str, stderr: &str) -> Ran {
    Ran { status: ExecStatus::Exited(1), stdout: stdout.to_owned(), stderr: stderr.to_owned(), refused: Vec::new() }
}

fn told(tool: Tool, ran: &Ran) -> String {
    let error = explain(tool, &request(), ran);
    format!("{}: {error}; {}", error.kind().as_str(), error.hint().unwrap_or("-"))
}

#[test]
fn pip_says_that_there_is_no_such_package_or_version() {
    let absent = "ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)\n\
                  ERROR: No matching distribution found for nosuch\n";
    let text = told(Tool::Pip, &ran("", absent));
    assert!(text.starts_with("not_found: there is no package nosuch in the index; check the name"), "{text}");
    let versions = "ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 1.1, 1.2, 1.3, \
                    1.4, 1.5, 1.6, 1.7, 1.8, 1.9)\nERROR: No matching distribution found for six==99\n";
    let text = told(Tool::Pip, &ran("", versions));
    assert_eq!(text, "not_found: no version matches six==99; the newest are 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9");
    let python = "ERROR: Ignored the following versions that require a different python version: 2.0 Requires-Python \
                  >=3.99; 2.1 Requires-Python >=3.99\n\
                  ERROR: Could not find a version that satisfies the requirement new (from versions: none)\n";
    let text = told(Tool::Pip, &ran("", python));
    assert_eq!(
        text,
        "not_found: no version of new is for the Python of this image; there is 2.0 Requires-Python >=3.99, for example"
    );
}

#[test]
fn pip_says_what_does_not_go_together() {
    let stdout = "Collecting six==1.16.0\n\nThe conflict is caused by:\n    The user requested six==1.16.0\n    \
                  The user requested six==1.17.0\n\nTo fix this you could try to:\n1. loosen\n";
    let stderr = "ERROR: Cannot install six==1.16.0 and six==1.17.0 because these package versions have conflicting \
                  dependencies.\nERROR: ResolutionImpossible: for help visit https://pip.example\n";
    assert_eq!(
        told(Tool::Pip, &ran(stdout, stderr)),
        "invalid_input: these packages do not go together: The user requested six==1.16.0 | The user requested \
         six==1.17.0; -"
    );
}

#[test]
fn a_build_that_fails_is_told_by_its_last_lines() {
    let stdout = "Collecting hostile\n  Downloading hostile-1.0.tar.gz\n";
    let stderr = "  error: subprocess-exited-with-error\n  \n  × python setup.py egg_info did not run successfully.\n  \
                  │ exit code: 1\n  ╰─> [1 lines of output]\n      \x1b[31mno way\x1b[0m\n      [end of output]\n  \n  note: \
                  This error originates from a subprocess, and is likely not a problem with pip.\n";
    let text = told(Tool::Pip, &ran(stdout, stderr));
    assert!(text.starts_with("unavailable: hostile could not be built: no way; ask for a version"), "{text}");
}

#[test]
fn an_index_that_is_out_of_reach_is_told_by_who_refused() {
    let stderr = "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', \
                  OSError('Tunnel connection failed: 403 Forbidden'))': /simple/six/\n\
                  ERROR: Could not find a version that satisfies the requirement six (from versions: none)\n";
    let silent = ran("", stderr);
    assert!(is_final(&silent));
    let mut refused = ran("", stderr);
    refused.refused.push(Refusal {
        host: "files.example".parse().unwrap(),
        port: Some(443),
        denial: Denial::HostNotAllowed,
        count: 1,
    });
    let text = told(Tool::Pip, &refused);
    assert!(text.starts_with("denied: installing needs files.example:443"), "{text}");
    assert!(text.ends_with("--package-host files.example:443"), "{text}");
    let dead = ran("", "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n");
    assert_eq!(
        told(Tool::Pip, &dead),
        "unavailable: the index https://index.example/simple does not answer; try again later"
    );
}

#[test]
fn npm_says_that_there_is_no_such_package_or_version() {
    for prefix in ["npm ERR!", "npm error"] {
        let absent = format!(
            "{prefix} code E404\n{prefix} 404 Not Found - GET https://registry.example/nosuch\n{prefix} 404\n\
             {prefix} 404  '@a/nosuch@latest' is not in this registry.\n"
        );
        let text = told(Tool::Npm, &ran("", &absent));
        assert!(text.starts_with("not_found: there is no package @a/nosuch in the index"), "{text}");
    }
    let version = ran("", "npm error code ETARGET\nnpm error notarget No matching version found for @a/b@^99.\n");
    assert_eq!((unmatched(&version).as_deref(), wanted(&version).as_deref()), (Some("@a/b"), Some("@a/b@^99")));
    let versions = ["1.0.0".to_owned(), "1.1.0".to_owned()];
    assert_eq!(no_version("@a/b@^99", &versions).hint(), Some("there are 1.0.0, 1.1.0"));
}

#[test]
fn an_install_script_that_fails_is_told_by_its_package() {
    let stderr = "npm error code 3\nnpm error path /workspace/build/node_modules/@a/hostile\nnpm error command failed\n\
                  npm error command sh -c node install.js\nnpm error fetching evil.example\nnpm error A complete log of \
                  this run can be found in: /tmp/npm/_logs/x.log\n";
    let text = told(Tool::Npm, &ran("", stderr));
    assert!(
        text.starts_with("unavailable: the install script of @a/hostile failed: fetching evil.example; it could"),
        "{text}"
    );
}

#[test]
fn uv_is_read_without_its_drawings() {
    let absent = "  × No solution found when resolving dependencies:\n  ╰─▶ Because nosuch was not found in the package \
                  registry and you require\n      nosuch, we can conclude that your requirements are unsatisfiable.\n";
    let text = told(Tool::Uv, &ran("", absent));
    assert!(text.starts_with("not_found: there is no package nosuch in the index"), "{text}");
    let version = "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of six==99 and \
                   you require six==99, we can\n      conclude that your requirements are unsatisfiable.\n";
    let text = told(Tool::Uv, &ran("", version));
    assert!(text.starts_with("not_found: no versions go together: Because there is no version of six==99"), "{text}");
}

#[test]
fn what_is_used_up_is_told_as_that() {
    let full = ran("", "OSError: [Errno 28] No space left on device\n");
    assert!(is_final(&full) && told(Tool::Pip, &full).starts_with("limit_exceeded: the room"));
    let memory = Ran { status: ExecStatus::OutOfMemory, ..ran("", "") };
    assert!(is_final(&memory) && told(Tool::Pip, &memory).starts_with("limit_exceeded: the memory"));
    let unknown = told(Tool::Pip, &ran("", "something\nnobody knows\x07\n"));
    assert_eq!(unknown, "unavailable: six could not be installed: something | nobody knows; -");
}
