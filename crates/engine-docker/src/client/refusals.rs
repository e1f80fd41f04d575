//! Why nobody answers, in words of somebody who can do something about it.

use bollard::errors::Error as ClientError;

use crate::Flavour;

/// Of what a daemon says, in characters.
const LONGEST: usize = 400;

/// How the library begins, whatever follows.
const PREFACES: [&str; 3] =
    ["Error in the hyper legacy client: ", "client error (Connect): ", "client error (SendRequest): "];

/// The library says little itself; what it heard from the system is the reason.
pub(super) fn reason(error: &ClientError) -> String {
    let mut said = error.to_string();
    let mut deeper = std::error::Error::source(error);
    while let Some(cause) = deeper {
        let text = cause.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        deeper = cause.source();
    }
    let bare = PREFACES.iter().fold(said.as_str(), |text, preface| text.strip_prefix(preface).unwrap_or(text));
    shortened(bare)
}

/// What a daemon, or whatever answers in its place, has to say may be a whole page.
pub(crate) fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    line.chars().take(LONGEST).chain(['…']).collect()
}

/// What to do about a daemon that is there, when two who should believe each other do not.
pub(super) fn remedy(flavour: Flavour, said: &str) -> Option<&'static str> {
    let says = |any: &[&str]| any.iter().any(|words| said.contains(words));
    if says(&["invalid peer certificate"]) {
        Some(
            "ca.pem must be of the authority that signed the daemon's certificate, and that certificate for the host \
             that the address names",
        )
    } else if says(&["CertificateRequired", "BadCertificate", "UnknownCA", "CertificateUnknown", "DecryptError"]) {
        Some("the daemon wants a certificate that its authority has signed: cert.pem and key.pem beside ca.pem")
    } else if says(&["HTTP request to an HTTPS server"]) {
        Some(match flavour {
            Flavour::Docker => {
                "the daemon speaks TLS: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH, or use a context that has \
                 certificates"
            }
            Flavour::Podman => {
                "Podman's service speaks no TLS, and what answers there does: name its socket, or forward it"
            }
        })
    } else if says(&["InvalidContentType", "corrupt message"]) {
        Some("the daemon does not speak TLS at this address: leave DOCKER_TLS_VERIFY out where that is meant")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_no_reason() {
        assert_eq!(shortened("no space\n  left"), "no space left");
        assert_eq!(shortened(&"é ".repeat(5000)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn only_disbelief_has_a_remedy_of_its_own() {
        for (flavour, said, what) in [
            (Flavour::Docker, "invalid peer certificate: UnknownIssuer", "ca.pem"),
            (Flavour::Docker, "received fatal alert: CertificateRequired", "cert.pem"),
            (Flavour::Docker, "Client sent an HTTP request to an HTTPS server.", "DOCKER_TLS_VERIFY"),
            (Flavour::Podman, "Client sent an HTTP request to an HTTPS server.", "its socket"),
        ] {
            assert!(remedy(flavour, said).is_some_and(|told| told.contains(what)), "{said}");
        }
        assert_eq!(remedy(Flavour::Docker, "Connection refused (os error 111)"), None);
    }
}
