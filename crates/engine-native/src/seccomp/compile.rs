//! From a policy to classic BPF: a binary search over ranges of numbers with one answer each.
//!
//! The program is written from its end to its beginning, because jumps only lead forward: whatever an instruction
//! jumps to is then already in place, and its distance is known.

use super::policy::{Answer, Check, Condition, Policy, Rule};

/// `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub operand: u32,
}

impl Instruction {
    pub fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&self.code.to_ne_bytes());
        bytes[2] = self.jump_true;
        bytes[3] = self.jump_false;
        bytes[4..].copy_from_slice(&self.operand.to_ne_bytes());
        bytes
    }
}

/// As `linux/bpf_common.h` has them: filters are compiled on other systems too.
pub const LOAD: u16 = 0x20;
pub const AND: u16 = 0x54;
pub const JUMP: u16 = 0x05;
pub const JUMP_IF_EQUAL: u16 = 0x15;
pub const JUMP_IF_AT_LEAST: u16 = 0x35;
pub const RETURN: u16 = 0x06;

/// `SECCOMP_RET_ALLOW` and `SECCOMP_RET_ERRNO`.
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// Of each argument the low half comes first: both architectures are little-endian.
const ARGUMENTS: u32 = 16;

const FARTHEST_CONDITIONAL_JUMP: usize = u8::MAX as usize;

pub fn compile(policy: &Policy) -> Vec<Instruction> {
    compile_with(policy, policy.unknown())
}

/// The same, with another answer to programs of a foreign architecture: where another filter looks at those.
pub fn compile_with(policy: &Policy, foreign: Answer) -> Vec<Instruction> {
    let mut program = Backwards::default();
    let foreign = program.answer(foreign);
    let search = program.search(&ranges(policy));
    let load_number = program.load(NUMBER, search);
    let this_machine = program.branch(JUMP_IF_EQUAL, policy.architecture().audit_code(), load_number, foreign);
    program.load(ARCHITECTURE, this_machine);
    program.finish()
}

pub fn return_value(answer: Answer) -> u32 {
    match answer.errno() {
        None => ALLOW,
        Some(errno) => ERRNO | errno as u32,
    }
}

/// From `first` up to the next range, every number follows `rule`.
struct Range<'a> {
    first: u32,
    rule: Rule<'a>,
}

/// The last range has no end, so it also takes the numbers of x32, which have bit 30 set.
fn ranges(policy: &Policy) -> Vec<Range<'_>> {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let mut add = |first, rule| {
        if ranges.last().is_none_or(|last| last.rule != rule) {
            ranges.push(Range { first, rule });
        }
    };
    let mut next = 0;
    for number in policy.numbers() {
        if number > next {
            add(next, Rule::Always(policy.unknown()));
        }
        add(number, policy.rule(number));
        next = number + 1;
    }
    add(next, Rule::Always(policy.unknown()));
    ranges
}

/// A place in a program that is written backwards: its distance from the end.
#[derive(Clone, Copy)]
struct Label(usize);

#[derive(Default)]
struct Backwards {
    reversed: Vec<Instruction>,
}

impl Backwards {
    fn push(&mut self, instruction: Instruction) -> Label {
        self.reversed.push(instruction);
        Label(self.reversed.len() - 1)
    }

    /// How many instructions lie between the one that is pushed next and `target`.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - target.0 - 1
    }

    /// A label for the same place that the next instruction, and two more before it, can reach by a conditional jump.
    fn reachable(&mut self, target: Label) -> Label {
        if self.distance(target) + 2 <= FARTHEST_CONDITIONAL_JUMP {
            return target;
        }
        let distance = self.distance(target) as u32;
        self.push(Instruction { code: JUMP, jump_true: 0, jump_false: 0, operand: distance })
    }

    fn branch(&mut self, code: u16, operand: u32, if_true: Label, if_false: Label) -> Label {
        let if_true = self.reachable(if_true);
        let if_false = self.reachable(if_false);
        let (jump_true, jump_false) = (self.distance(if_true) as u8, self.distance(if_false) as u8);
        self.push(Instruction { code, jump_true, jump_false, operand })
    }

    /// Loading falls through to what comes next, so `next` must be what was pushed last.
    fn load(&mut self, offset: u32, next: Label) -> Label {
        debug_assert_eq!(self.distance(next), 0);
        self.push(Instruction { code: LOAD, jump_true: 0, jump_false: 0, operand: offset })
    }

    /// One return per answer is enough until it lies too far away; then a second one is cheaper than a jump to it.
    fn answer(&mut self, answer: Answer) -> Label {
        let instruction = Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand: return_value(answer) };
        match self.reversed.iter().rposition(|known| *known == instruction) {
            Some(index) if self.distance(Label(index)) + 2 <= FARTHEST_CONDITIONAL_JUMP => Label(index),
            _ => self.push(instruction),
        }
    }

    fn search(&mut self, ranges: &[Range<'_>]) -> Label {
        if let [only] = ranges {
            return match only.rule {
                Rule::Always(answer) => self.answer(answer),
                Rule::Depends(condition) => self.condition(condition),
            };
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let if_upper = self.search(upper);
        let if_lower = self.search(lower);
        self.branch(JUMP_IF_AT_LEAST, upper[0].first, if_upper, if_lower)
    }

    fn condition(&mut self, condition: &Condition) -> Label {
        let mut if_not = self.answer(condition.otherwise);
        for clause in condition.clauses.iter().rev() {
            let mut if_so = self.answer(condition.then);
            for check in clause.iter().rev() {
                if_so = self.check(check, if_so, if_not);
            }
            if_not = if_so;
        }
        if_not
    }

    fn check(&mut self, check: &Check, if_so: Label, if_not: Label) -> Label {
        let mut next = if_not;
        for value in check.values().rev() {
            next = self.branch(JUMP_IF_EQUAL, value, if_so, next);
        }
        if let Some(mask) = check.mask() {
            debug_assert_eq!(self.distance(next), 0);
            next = self.push(Instruction { code: AND, jump_true: 0, jump_false: 0, operand: mask });
        }
        self.load(ARGUMENTS + 8 * u32::from(check.argument), next)
    }

    fn finish(mut self) -> Vec<Instruction> {
        self.reversed.reverse();
        self.reversed
    }
}
