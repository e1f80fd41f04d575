//! Sandboxes under ids as Docker gives them out: older servers spoke of containers.

use std::time::Duration;

use sandbox::{Error, GuestPath, Lifetime, Persistence, Result, SandboxId, SandboxInfo, SandboxSpec};
use sha2::{Digest, Sha256};

use crate::call::Call;
use crate::policy::{Asked, Policy};

/// As short as Docker shows them; what is shorter is no id.
const SHORTEST: usize = 12;

/// The id of the container that a sandbox is to its caller: 64 hexadecimal digits.
///
/// It follows from the sandbox's own id, which is random, so it needs no list that could be lost, and cannot be guessed.
pub fn id_of(sandbox: &SandboxId) -> String {
    let mut hash = Sha256::new();
    hash.update(b"container of sandbox ");
    hash.update(sandbox.as_str());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The caller's own sandbox that was given out under this id, or under one that begins so. Whatever else there is on the
/// machine, its daemon's containers too, is not there.
pub async fn find(call: &Call, id: &str) -> Result<SandboxInfo> {
    let unknown = || Error::not_found(format!("there is no container {id:?} of yours"));
    if id.len() < SHORTEST {
        return Err(unknown());
    }
    let mut named = call.service.list(&call.owner).await?.into_iter().filter(|one| id_of(&one.id).starts_with(id));
    match (named.next(), named.next()) {
        (Some(sandbox), None) => {
            // Somebody else may have made it, through another server, with more than may be had here.
            call.policy.ceiling.network.admit(sandbox.network.clone())?;
            Ok(sandbox)
        }
        (Some(_), Some(_)) | (None, _) => Err(unknown()),
    }
}

/// A sandbox of this policy that nobody asked to keep, in which programs start here.
pub fn spec(call: &Call, image: Option<&str>, directory: &str) -> Result<SandboxSpec> {
    let spec = call.policy.spec(&call.owner, Asked { image, network: None })?;
    let lifetime = Lifetime { idle: unused(&call.policy), ..spec.lifetime };
    Ok(SandboxSpec { work_directory: Some(directory.parse::<GuestPath>()?), lifetime, ..spec })
}

/// How long such a one stays when nobody uses it.
pub fn unused(policy: &Policy) -> Duration {
    policy.lifetime.idle.min(policy.longest_unused)
}

/// The same, for one that is to be found again for as long as the operator says.
pub fn kept(call: &Call, spec: SandboxSpec) -> SandboxSpec {
    SandboxSpec { persistence: Persistence::Persistent, lifetime: call.policy.lifetime, ..spec }
}

/// The same, for one that outlives its server although nobody asked for that. It may be forgotten by all, so it has an end
/// whatever goes on in it, and also when a daemon has stopped it: idle time alone would end neither. It is not sooner than
/// the operator lets one be unused.
pub fn left_behind(call: &Call, spec: SandboxSpec, longest: Duration) -> SandboxSpec {
    if !call.service.capabilities().persistence {
        return spec;
    }
    let lifetime = Lifetime { total: spec.lifetime.total.or(Some(longest.max(spec.lifetime.idle))), ..spec.lifetime };
    SandboxSpec { persistence: Persistence::Persistent, lifetime, ..spec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_look_like_those_of_containers_and_differ() {
        let [first, second] = [SandboxId::random().unwrap(), SandboxId::random().unwrap()];
        assert_eq!(id_of(&first), id_of(&first));
        assert_ne!(id_of(&first), id_of(&second));
        assert_eq!(id_of(&first).len(), 64);
        assert!(id_of(&first).bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()));
    }
}
