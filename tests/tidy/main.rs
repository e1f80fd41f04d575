//! Rules of the source tree that no compiler checks: who may know whom, what may stand where.
//!
//! Every rule is a pure function of a tree, and every rule has a sample that breaks it: a rule that cannot fail is none.

mod crates;
mod documents;
mod text;
mod tree;

use tree::{Rule, Tree};

fn rules() -> Vec<Rule> {
    [crates::RULES, text::RULES, documents::RULES].concat()
}

#[test]
fn the_tree_keeps_its_rules() {
    let tree = Tree::of_the_repository();
    let mut breaches = Vec::new();
    for rule in rules() {
        breaches.extend((rule.check)(&tree).into_iter().map(|breach| format!("{}: {breach}", rule.name)));
    }
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

#[test]
fn every_rule_can_fail() {
    for rule in rules() {
        for &(path, text) in rule.broken_by {
            let tree = Tree::of_samples(&[(path, text)]);
            assert!(!(rule.check)(&tree).is_empty(), "{}: {path} does not break it:\n{text}", rule.name);
        }
        assert!(!rule.broken_by.is_empty(), "{} has no sample that breaks it", rule.name);
    }
}

#[test]
fn every_rule_can_pass() {
    for rule in rules() {
        for &(path, text) in rule.kept_by {
            let tree = Tree::of_samples(&[(path, text)]);
            assert_eq!((rule.check)(&tree), Vec::<String>::new(), "{}: {path} breaks it", rule.name);
        }
    }
}
