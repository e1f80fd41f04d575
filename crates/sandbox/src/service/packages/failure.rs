//! Why an installation failed, in one sentence: which package, and what is wrong with it.

use super::Request;
use super::builder::Ran;
use super::words::{last_lines, plain};
use crate::error::{Error, ErrorKind};
use crate::exec::ExecStatus;

/// Versions that are named where none of them was good.
const VERSIONS: usize = 8;

/// Of what a build said last.
const LAST_LINES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Uv,
    Pip,
    Npm,
}

/// Whether another attempt, one that may build packages, can only fail the same way.
pub(super) fn is_final(ran: &Ran) -> bool {
    !ran.has_ended() || is_disconnected(&ran.stderr) || is_full(&ran.stderr)
}

pub(super) fn explain(tool: Tool, request: &Request, ran: &Ran) -> Error {
    let packages = &request.packages;
    match ran.status {
        ExecStatus::Exited(_) => {}
        ExecStatus::OutOfMemory => {
            return Error::limit_exceeded(format!("the memory for installing {packages} is used up"))
                .with_hint("ask for fewer packages at once; the operator can give more with --max-memory");
        }
        ExecStatus::TimedOut => {
            return Error::new(ErrorKind::TimedOut, format!("installing {packages} took too long"));
        }
        ExecStatus::Signalled(_) | ExecStatus::Cancelled | ExecStatus::Killed => {
            return Error::unavailable(format!("the installation of {packages} was ended"));
        }
    }
    if is_full(&ran.stderr) {
        return Error::limit_exceeded(format!("the room for installing {packages} is used up"))
            .with_hint("ask for fewer packages at once; the operator can give more with --max-disk and --max-memory");
    }
    if is_disconnected(&ran.stderr) {
        return unreachable(request, ran);
    }
    let told = match tool {
        Tool::Pip => pip(ran),
        Tool::Uv => uv(&ran.stderr),
        Tool::Npm => npm(&ran.stderr),
    };
    told.unwrap_or_else(|| {
        let said = [&ran.stderr, &ran.stdout].map(|text| last_lines(text, LAST_LINES));
        let said = if said[0].is_empty() { &said[1] } else { &said[0] };
        Error::unavailable(format!("{packages} could not be installed: {}", said.join(" | ")))
    })
}

/// A program of the image that does not do what it must.
pub(super) fn broken(program: &str, request: &Request, ran: &Ran) -> Error {
    let said = last_lines(&ran.stderr, 2).join(" | ");
    Error::unsupported(format!("{program} of the image {} does not work: {said}", request.image.shown()))
}

pub(super) fn no_version(wanted: &str, versions: &[String]) -> Error {
    let error = Error::not_found(format!("no version matches {wanted}"));
    let newest: Vec<&str> =
        versions.iter().rev().take(VERSIONS).map(String::as_str).filter(|one| one.len() < 64).collect();
    match newest.as_slice() {
        [] => error,
        newest => {
            let newest: Vec<String> = newest.iter().rev().map(|version| plain(version)).collect();
            let more = if versions.len() > VERSIONS { "the newest are" } else { "there are" };
            error.with_hint(format!("{more} {}", newest.join(", ")))
        }
    }
}

fn no_package(name: &str) -> Error {
    Error::not_found(format!("there is no package {name} in the index"))
        .with_hint("check the name: it is that of the package, which is not always the one that code imports")
}

fn is_disconnected(stderr: &str) -> bool {
    [
        // pip
        "after connection broken by",
        "Could not fetch URL",
        "ProxyError",
        "is not a trusted or secure host",
        // uv
        "Failed to fetch",
        "error sending request",
        // npm
        "code ENOTFOUND",
        "code ECONNREFUSED",
        "code ECONNRESET",
        "code ETIMEDOUT",
        "code EAI_AGAIN",
        "code E403",
        "code E401",
        "code E502",
        "code FETCH_ERROR",
        "code SELF_SIGNED_CERT_IN_CHAIN",
        "code UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
    ]
    .iter()
    .any(|sign| stderr.contains(sign))
}

fn is_full(stderr: &str) -> bool {
    stderr.contains("No space left on device") || stderr.contains("ENOSPC")
}

/// Whether it says only that it found nothing, which it also does when nobody answered.
pub(super) fn found_nothing(ran: &Ran) -> bool {
    ran.has_ended() && ran.stderr.contains("(from versions: none)")
}

/// The gateway knows what was refused; what the package manager says of it is a guess.
pub(super) fn unreachable(request: &Request, ran: &Ran) -> Error {
    let of_index = |host: &str| request.index.hosts.iter().any(|rule| rule.to_string().starts_with(host));
    if let Some(refusal) = ran.refused.first() {
        let host = refusal.host.to_string();
        let place = refusal.port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let error = Error::denied(format!("installing needs {place}: {}", refusal.denial.description()));
        return match of_index(&host) {
            true => error.with_hint("name the index in the settings of pip, uv or npm on this machine, or allow it with --allow-private-host"),
            false => error.with_hint(format!("the operator can let installations reach it with --package-host {place}")),
        };
    }
    let login = ["401", "403"].iter().any(|code| {
        let signs = [
            format!("code E{code}"),
            format!("HTTP error {code}"),
            format!("({code} "),
            format!("{code} Client Error"),
        ];
        signs.iter().any(|sign| ran.stderr.contains(sign.as_str()))
    });
    let urls = request.index.urls.join(", ");
    if login {
        return Error::denied(format!("the index {urls} wants a login that it was not given, or does not take"))
            .with_hint("check the credentials in the settings of pip, uv or npm on this machine");
    }
    let certificate =
        ["CERTIFICATE_VERIFY_FAILED", "SELF_SIGNED_CERT", "UNABLE_TO_GET_ISSUER", "invalid peer certificate"];
    if certificate.iter().any(|sign| ran.stderr.contains(sign)) {
        return Error::unavailable(format!("the certificate of the index {urls} is not trusted in the image"))
            .with_hint("name the authority in the settings of pip or npm on this machine (cert, cafile)");
    }
    Error::unavailable(format!("the index {urls} does not answer")).with_hint("try again later")
}

fn pip(ran: &Ran) -> Option<Error> {
    let lines: Vec<&str> = ran.stderr.lines().map(str::trim).collect();
    let after = |start: &str| lines.iter().find_map(|line| line.split_once(start).map(|(_, rest)| rest));
    if let Some(rest) = after("Could not find a version that satisfies the requirement ") {
        let (wanted, versions) = rest.split_once(" (from versions: ").unwrap_or((rest, "none"));
        let wanted = plain(wanted);
        let versions = versions.trim_end_matches(')');
        let name = wanted.split(['=', '<', '>', '!', '~', ';', ' ', '[']).next().unwrap_or(&wanted);
        let other_python = after("Ignored the following versions that require a different python version: ");
        return Some(match (versions, other_python) {
            ("none" | "", Some(ignored)) => {
                let first = plain(ignored.split(';').next().unwrap_or(ignored));
                Error::not_found(format!("no version of {name} is for the Python of this image"))
                    .with_hint(format!("there is {first}, for example"))
            }
            ("none" | "", None) => no_package(name),
            (versions, _) => no_version(&wanted, &versions.split(", ").map(str::to_owned).collect::<Vec<_>>()),
        });
    }
    if let Some(said) = conflict(&ran.stdout).or_else(|| conflict(&ran.stderr)) {
        return Some(Error::invalid_input(format!("these packages do not go together: {said}")));
    }
    let failed = after("Failed building wheel for ").or_else(|| after("Failed to build "));
    let is_build = failed.is_some() || ran.stderr.contains("subprocess-exited-with-error");
    is_build.then(|| {
        let collected = ran.stdout.lines().rev().find_map(|line| line.trim().strip_prefix("Collecting "));
        let named = failed.or(collected).and_then(|text| text.split_whitespace().next());
        let name = named.map_or_else(|| "a package".to_owned(), plain);
        let output = ran.stderr.split("lines of output]").nth(1).and_then(|rest| rest.split("[end of output]").next());
        let said = last_lines(output.unwrap_or(&ran.stderr), LAST_LINES).join(" | ");
        Error::unavailable(format!("{name} could not be built: {said}"))
            .with_hint("ask for a version that has a wheel, or use an image with what its build needs")
    })
}

/// What pip lists below such a line.
fn conflict(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("The conflict is caused by:")?;
    let said: Vec<String> =
        rest.lines().map(plain).skip_while(String::is_empty).take_while(|line| !line.is_empty()).collect();
    Some(said.into_iter().take(LAST_LINES).collect::<Vec<_>>().join(" | "))
}

fn uv(stderr: &str) -> Option<Error> {
    let drawn = |character: char| matches!(character, '×' | '╰' | '─' | '▶' | '│' | '├');
    let lines =
        stderr.lines().map(|line| plain(line.trim_start_matches(|one: char| drawn(one) || one.is_whitespace())));
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    if let Some((before, _)) = text.split_once(" was not found in the package registry") {
        return Some(no_package(before.rsplit(' ').next().unwrap_or("of that name")));
    }
    if let Some((_, reason)) = text.split_once("No solution found when resolving dependencies:") {
        let reason: String = reason.trim().chars().take(600).collect();
        return Some(Error::not_found(format!("no versions go together: {reason}")));
    }
    let (_, reason) = text.split_once("Failed to build ")?;
    let reason: String = reason.chars().take(600).collect();
    Some(
        Error::unavailable(format!("a package could not be built: {reason}"))
            .with_hint("ask for a version that has a wheel, or use an image with what its build needs"),
    )
}

/// What npm could not find a version of, by its name.
pub(super) fn unmatched(ran: &Ran) -> Option<String> {
    let wanted = wanted(ran)?;
    let at = wanted.char_indices().skip(1).find(|(_, character)| *character == '@').map_or(wanted.len(), |(at, _)| at);
    let name = &wanted[..at];
    (!name.starts_with('-')).then(|| name.to_owned())
}

/// The same with the versions.
pub(super) fn wanted(ran: &Ran) -> Option<String> {
    let (_, rest) = ran.stderr.split_once("No matching version found for ")?;
    Some(plain(rest.split_whitespace().next()?.trim_end_matches('.')))
}

fn npm(stderr: &str) -> Option<Error> {
    let lines: Vec<String> = stderr
        .lines()
        .map(plain)
        .map(|line| line.trim_start_matches("npm ERR!").trim_start_matches("npm error").trim().to_owned())
        .collect();
    let code = lines.iter().find_map(|line| line.strip_prefix("code "))?;
    match code {
        "E404" => {
            let named = lines.iter().find_map(|line| line.split('\'').nth(1)).unwrap_or("of that name");
            let at = named.char_indices().skip(1).find(|(_, one)| *one == '@').map_or(named.len(), |(at, _)| at);
            Some(no_package(&named[..at]))
        }
        "ERESOLVE" => {
            let said: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("ERESOLVE ")).take(3).collect();
            Some(Error::invalid_input(format!("these packages do not go together: {}", said.join(" "))))
        }
        _ => {
            let place = lines.iter().find_map(|line| line.strip_prefix("path "))?;
            let (_, name) = place.rsplit_once("node_modules/")?;
            let noise = ["code ", "path ", "command ", "A complete log", "/tmp/npm"];
            let said: Vec<&String> = lines
                .iter()
                .filter(|line| !line.is_empty() && !noise.iter().any(|start| line.starts_with(start)))
                .collect();
            let last: Vec<&str> =
                said[said.len().saturating_sub(LAST_LINES)..].iter().map(|line| line.as_str()).collect();
            Some(
                Error::unavailable(format!("the install script of {name} failed: {}", last.join(" | ")))
                    .with_hint("it could reach the registry and nothing else; ask for a package that needs no more"),
            )
        }
    }
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;
