//! Packages that a model may ask for, where the operator lets it.

use sandbox::{Error, Image, PackageLanguage, PackageStep, Packages, Prepared, Result, SandboxSpec};

use crate::call::Call;
use crate::policy::Policy;

/// What a call asks for, if it may. What has no language before it is of the usual one.
pub fn asked(policy: &Policy, usual: PackageLanguage, texts: &[String]) -> Result<Vec<Packages>> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    if !policy.packages {
        return Err(Error::denied("this server installs no packages").with_hint(
            "leave packages out and use what the image has; the operator can allow them with --allow-packages",
        ));
    }
    Packages::sort_out(usual, texts)
}

/// Has packages installed that are not there, for as long as calls wait for runs.
pub async fn provide(call: &Call, image: &Image, wanted: &[Packages]) -> Result<Vec<Prepared>> {
    let preparing = async {
        let mut prepared = Vec::new();
        for packages in wanted {
            check_reach(call, image, packages)?;
            let tell = |step: &PackageStep| call.progress.report(&format!("packages: {step}"));
            prepared.push(call.service.prepare_packages(&call.owner, image, packages, tell).await?);
        }
        Ok(prepared)
    };
    tokio::select! {
        prepared = preparing => prepared,
        () = call.cancelled.cancelled() => Err(Error::unavailable("the request was cancelled")),
        () = tokio::time::sleep(call.policy.wait) => {
            Err(Error::unavailable("the packages are being installed, which takes a while")
                .with_hint("make the same call again: what has begun goes on meanwhile"))
        }
    }
}

/// What a model has put into an image may run while packages are installed for it, so those may reach only what its
/// sandboxes may.
fn check_reach(call: &Call, image: &Image, packages: &Packages) -> Result<()> {
    match image {
        Image::Host | Image::Directory(_) | Image::Archive(_) | Image::Named(_) => return Ok(()),
        Image::Saved(_) => {}
    }
    let reach = call.service.package_network(packages)?;
    call.policy.ceiling.network.admit(reach.clone()).map(drop).map_err(|_| {
        Error::denied("this server installs no packages for saved images").with_hint(format!(
            "use the image that it was saved from; the operator can allow it with --max-network {reach}"
        ))
    })
}

/// Let a sandbox have them; what they are, with versions.
pub fn attach(prepared: &[Prepared], spec: &mut SandboxSpec) -> Result<Vec<String>> {
    prepared.iter().try_for_each(|prepared| prepared.attach_to(spec))?;
    Ok(prepared.iter().flat_map(Prepared::versions).collect())
}

/// For the argument of tools.
pub fn argument(policy: &Policy, usual: &str) -> String {
    if !policy.packages {
        return "Packages to install: none can be, on this server.".to_owned();
    }
    format!(
        "Packages to have there, by name and, if it matters, version: pandas==2.2.3. {usual} The first use installs them, \
         which takes a while; later ones are quick and need no network."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_the_operators_to_allow() {
        let texts = ["pandas".to_owned(), "npm:lodash".to_owned()];
        let error = asked(&Policy::default(), PackageLanguage::Python, &texts).unwrap_err();
        assert!(error.hint().unwrap().contains("--allow-packages"));
        assert_eq!(asked(&Policy::default(), PackageLanguage::Python, &[]).unwrap(), []);
        let policy = Policy { packages: true, ..Policy::default() };
        assert_eq!(asked(&policy, PackageLanguage::Python, &texts).unwrap().len(), 2);
        assert!(asked(&policy, PackageLanguage::Python, &["-r x".to_owned()]).is_err());
    }
}
