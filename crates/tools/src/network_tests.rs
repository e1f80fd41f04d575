use sandbox::Host;
use serde_json::json;

use super::*;

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

fn parsed(value: serde_json::Value) -> Result<Network> {
    serde_json::from_value::<NetworkArgument>(value).unwrap().parse()
}

fn refused(refusals: &[(&str, Option<u16>, Denial)]) -> NetworkActivity {
    let refusal = |&(host, port, denial): &(&str, Option<u16>, Denial)| Refusal {
        host: host.parse::<Host>().unwrap(),
        port,
        denial,
        count: 1,
    };
    NetworkActivity { refused: refusals.iter().map(refusal).collect(), ..NetworkActivity::default() }
}

#[test]
fn text_and_lists_mean_the_same() {
    for (value, expected) in [
        (json!("none"), "none"),
        (json!([]), "none"),
        (json!(["none"]), "none"),
        (json!("internet"), "internet"),
        (json!(["internet"]), "internet"),
        (json!(" b.example , a.example:22"), "a.example:22,b.example"),
        (json!(["b.example", "a.example:22"]), "a.example:22,b.example"),
        (json!(["b.example,a.example:22"]), "a.example:22,b.example"),
    ] {
        assert_eq!(parsed(value.clone()).unwrap(), network(expected), "{value}");
    }
    for value in
        [json!(""), json!([""]), json!("a.example,"), json!(["none", "a.example"]), json!("a.example,internet")]
    {
        assert!(parsed(value.clone()).unwrap_err().hint().is_some(), "{value} was taken");
    }
    let error = serde_json::from_value::<NetworkArgument>(json!(true)).unwrap_err();
    assert!(error.to_string().contains("none, internet, or hosts"), "{error}");
}

#[test]
fn a_wish_is_what_was_lacking_within_the_ceiling() {
    let activity = refused(&[
        ("a.example", Some(443), Denial::HostNotAllowed),
        ("b.example", Some(22), Denial::HostNotAllowed),
        ("c.example", None, Denial::HostNotAllowed),
        ("10.0.0.1", Some(80), Denial::PrivateAddress),
    ]);
    let wish = Wish::after(&activity, &network("had.example"), &Network::Internet);
    assert_eq!(wish.spelled().unwrap(), "a.example,b.example:22,c.example,had.example");
    assert_eq!(wish.forbidden, []);
    let wish = Wish::after(&activity, &network("had.example"), &network("had.example,a.example:443"));
    assert_eq!(wish.spelled().unwrap(), "a.example:443,had.example");
    assert_eq!(list(&wish.forbidden), "b.example:22,c.example");
    let wish = Wish::after(&activity, &network("had.example"), &network("had.example"));
    assert_eq!((wish.network.as_ref(), wish.spelled()), (None, None));
}

#[test]
fn every_rule_is_told_with_what_to_do() {
    for denial in Denial::ALL {
        let activity = refused(&[("a.example", Some(443), *denial)]);
        let line = told(&activity, &network("b.example"), &Network::Internet, Asking::SameTool).unwrap();
        assert!(line.starts_with(&format!("[network: refused a.example:443 ({}: ", denial.as_str())), "{line}");
        assert!(line.contains(';') || *denial == Denial::Malformed, "{line}");
    }
    assert_eq!(told(&refused(&[]), &network("b.example"), &Network::Internet, Asking::SameTool), None);
}

#[test]
fn a_flood_of_refusals_is_told_in_short() {
    let names: Vec<String> = (0..500).map(|number| format!("{}{number:03}.example", "x".repeat(50))).collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), Some(443), Denial::HostNotAllowed)).collect();
    let activity = NetworkActivity { refused_left_out: 7, ..refused(&all) };
    let line = told(&activity, &network("a.example"), &Network::Internet, Asking::NewSandbox).unwrap();
    assert!(line.len() < 2000 && line.contains(" and more;"), "{} bytes: {line}", line.len());
    let object = NetworkObject::from(&activity);
    assert_eq!((object.refused.len(), object.refused_left_out), (LISTED, 7 + 500 - LISTED as u64));
}

#[test]
fn a_program_that_misses_a_network_is_understood() {
    for output in [
        "curl: (6) Could not resolve host: pypi.org",
        "wget: unable to resolve host address 'pypi.org'",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "OSError: [Errno 101] Network is unreachable",
        "Error: getaddrinfo EAI_AGAIN pypi.org",
        "Exception in thread \"main\" java.net.UnknownHostException: pypi.org",
        "dial tcp: lookup pypi.org on 127.0.0.1:53: read udp 127.0.0.1:44832->127.0.0.1:53: connection refused",
    ] {
        assert!(is_missed_in(output.as_bytes()), "{output}");
    }
    for output in ["", "no", "FileNotFoundError: [Errno 2] No such file or directory: 'host'"] {
        assert!(!is_missed_in(output.as_bytes()), "{output}");
    }
    assert!(missed(&Network::None, Asking::SameTool).contains("only the operator"));
    assert!(
        missed(&network("a.example"), Asking::SameTool).ends_with("call again with network, for at most a.example]")
    );
    assert!(missed(&Network::Internet, Asking::NewSandbox).contains("create_sandbox"));
}
