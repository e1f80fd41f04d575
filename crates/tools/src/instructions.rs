//! What a model is told about the server as a whole, before its first call.

use crate::catalog::Catalog;
use crate::policy::Policy;
use crate::{text, words};

/// Short on purpose: it stands in every conversation. What one tool needs stands with that tool.
pub fn text(policy: &Policy, catalog: &Catalog) -> String {
    let has = |name: &str| catalog.find(name).is_some();
    let mut lines =
        vec!["Private computers for running code. Nothing in them can reach the user's machine.".to_owned()];
    if has("run_code") {
        lines.push(
            "Start with run_code: without a sandbox_id it gets a fresh sandbox that is gone when the call ends."
                .to_owned(),
        );
    }
    if has("create_sandbox") {
        lines.push(format!(
            "To keep files between calls, call create_sandbox once and pass its sandbox_id to every other tool. \
             A sandbox that is not used for {} ends with its files; a call that names an ended one fails, and \
             create_sandbox makes a new one.",
            text::spoken(policy.lifetime.idle)
        ));
    }
    if has("run_code") || has("run_command") {
        lines.push(format!(
            "A run may take {} unless timeout_s says otherwise, {} at most. A program that fails is an answer \
             like any other: look at its status and exit code.",
            text::spoken(policy.timeout),
            text::spoken(policy.longest_timeout)
        ));
    }
    lines.push(format!(
        "Files are in the work directory: /workspace, or where the image says. {}",
        words::network(policy)
    ));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Selection;

    #[test]
    fn only_tools_that_are_there_are_named() {
        let policy = Policy::default();
        let all = Catalog::new(&policy, &Selection::default()).unwrap();
        assert!(text(&policy, &all).contains("create_sandbox"));
        let few = Selection { tools: vec!["list_files".to_owned()], ..Selection::default() };
        let few = text(&policy, &Catalog::new(&policy, &few).unwrap());
        assert!(!few.contains("create_sandbox") && !few.contains("run_code"), "{few}");
        assert!(few.len() < 1000, "too long for every conversation: {few}");
    }
}
