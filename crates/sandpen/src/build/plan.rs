//! Which stages a target needs, and what each of them starts from.

use images::dockerfile::{Dockerfile, Instruction, Scope, Transfer};
use images::{Platform, Result};
use sandbox::Error;

use super::{at_line, image_error};

/// What a stage or a `COPY --from` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Scratch,
    Stage(usize),
    Image(String),
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// Of each stage that is needed, in their order; `None` for the others.
    pub bases: Vec<Option<Base>>,
    pub target: usize,
    /// Instructions of all stages that are needed, `FROM` not counted.
    pub steps: usize,
}

impl Plan {
    pub fn new(dockerfile: &Dockerfile, scope: &Scope, target: Option<&str>) -> sandbox::Result<Self> {
        let target = dockerfile.stage(target).map_err(image_error)?;
        let mut bases = vec![None; dockerfile.stages.len()];
        let mut wanted = vec![target];
        let mut steps = 0;
        while let Some(number) = wanted.pop() {
            if bases[number].is_some() {
                continue;
            }
            let stage = &dockerfile.stages[number];
            refuse_other_machines(scope.platform(stage)).map_err(|error| at_line(stage.line, error))?;
            let from = scope.from(stage).map_err(image_error)?;
            let base = match from.as_str() {
                "scratch" => Base::Scratch,
                from => named(dockerfile, from, number),
            };
            let copied = stage.steps.iter().filter_map(|step| source_of(dockerfile, &step.instruction, number));
            for needed in copied.chain([base.clone()]) {
                if let Base::Stage(number) = needed {
                    wanted.push(number);
                }
            }
            steps += stage.steps.len();
            bases[number] = Some(base);
        }
        Ok(Self { bases, target, steps })
    }
}

/// What a `COPY --from` of a stage means.
pub fn source_of(dockerfile: &Dockerfile, instruction: &Instruction, stage: usize) -> Option<Base> {
    match instruction {
        Instruction::Copy(Transfer { from: Some(from), .. }) | Instruction::Add(Transfer { from: Some(from), .. }) => {
            Some(named(dockerfile, from, stage))
        }
        _ => None,
    }
}

fn named(dockerfile: &Dockerfile, name: &str, before: usize) -> Base {
    dockerfile.earlier_stage(name, before).map_or_else(|| Base::Image(name.to_owned()), Base::Stage)
}

/// Programs of another machine cannot run here, and a build for it is mostly that.
fn refuse_other_machines(asked: Result<Option<String>>) -> sandbox::Result<()> {
    match asked.map_err(image_error)? {
        None => Ok(()),
        Some(asked) => check_platform(&asked),
    }
}

pub fn check_platform(asked: &str) -> sandbox::Result<()> {
    let machine = Platform::host();
    let mut parts = asked.split('/').map(str::to_owned);
    let wanted =
        parts.next().zip(parts.next()).map(|(os, architecture)| Platform { os, architecture, variant: parts.next() });
    match wanted {
        Some(wanted) if wanted.fitness(&machine).is_some() => Ok(()),
        Some(_) => Err(Error::unsupported(format!("this machine builds for {machine}, not for {asked:?}"))),
        None => {
            Err(Error::invalid_input(format!("{asked:?} is not a platform")).with_hint("write for example linux/amd64"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plan(text: &str, target: Option<&str>) -> sandbox::Result<Plan> {
        let dockerfile = Dockerfile::parse(text).unwrap();
        let scope = Scope::new(&dockerfile, BTreeMap::new()).unwrap();
        Plan::new(&dockerfile, &scope, target)
    }

    const STAGES: &str = "ARG BASE=tool:1\nFROM scratch AS empty\nFROM $BASE AS build\nRUN make\nFROM build AS test\n\
                          RUN check\nFROM empty\nCOPY --from=build /out /\nCOPY --from=other:2 /x /\n";

    #[test]
    fn only_stages_that_are_needed_are_built() {
        let last = plan(STAGES, None).unwrap();
        assert_eq!(last.target, 3);
        let image = Base::Image("tool:1".to_owned());
        assert_eq!(last.bases, [Some(Base::Scratch), Some(image.clone()), None, Some(Base::Stage(0))]);
        assert_eq!(last.steps, 3);
        let test = plan(STAGES, Some("test")).unwrap();
        assert_eq!(test.bases, [None, Some(image), Some(Base::Stage(1)), None]);
        assert!(plan(STAGES, Some("missing")).is_err());
    }

    #[test]
    fn a_stage_never_means_itself_or_a_later_one() {
        let own =
            plan("FROM scratch AS a\nCOPY --from=a /x /\nCOPY --from=b /x /\nFROM scratch AS b\n", Some("a")).unwrap();
        assert_eq!(own.bases, [Some(Base::Scratch), None]);
    }

    #[test]
    fn other_machines_are_refused_by_their_line() {
        assert!(plan("FROM --platform=$BUILDPLATFORM scratch\n", None).is_ok());
        let error = plan("FROM scratch\nFROM --platform=windows/amd64 x\n", None).unwrap_err();
        assert!(error.message().starts_with("line 2 of the Dockerfile: this machine builds for linux/"), "{error}");
    }
}
