//! A classic BPF machine for the tests: runs a filter as the kernel would, and remembers where it has been.

use std::collections::BTreeSet;

use super::compile::{AND, Instruction, JUMP, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD, RETURN};

/// Which way an instruction was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Passed,
    Taken,
    NotTaken,
}

#[derive(Debug, Default)]
pub struct Coverage(BTreeSet<(usize, Way)>);

impl Coverage {
    /// Every way through every instruction that was never gone.
    pub fn missing(&self, program: &[Instruction]) -> Vec<(usize, Way, Instruction)> {
        let all = program.iter().enumerate().flat_map(|(index, instruction)| {
            let ways: &[Way] = match instruction.code {
                JUMP_IF_EQUAL | JUMP_IF_AT_LEAST => &[Way::Taken, Way::NotTaken],
                _ => &[Way::Passed],
            };
            ways.iter().map(move |way| (index, *way, *instruction))
        });
        all.filter(|(index, way, _)| !self.0.contains(&(*index, *way))).collect()
    }
}

/// The value that the filter returns for one system call.
pub fn evaluate(
    program: &[Instruction],
    audit_code: u32,
    number: u32,
    arguments: &[u64; 6],
    coverage: &mut Coverage,
) -> u32 {
    let mut data = [0; 64];
    data[..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&audit_code.to_le_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        data[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_le_bytes());
    }

    let mut accumulator = 0u32;
    let mut at = 0;
    loop {
        let Instruction { code, jump_true, jump_false, operand } = program[at];
        let mut leave = |way| coverage.0.insert((at, way));
        let mut jump = |condition: bool| {
            leave(if condition { Way::Taken } else { Way::NotTaken });
            usize::from(if condition { jump_true } else { jump_false })
        };
        let skipped = match code {
            JUMP_IF_EQUAL => jump(accumulator == operand),
            JUMP_IF_AT_LEAST => jump(accumulator >= operand),
            _ => {
                leave(Way::Passed);
                match code {
                    LOAD => {
                        let word = data[operand as usize..operand as usize + 4].try_into().unwrap();
                        accumulator = u32::from_le_bytes(word);
                        0
                    }
                    AND => {
                        accumulator &= operand;
                        0
                    }
                    JUMP => operand as usize,
                    RETURN => return operand,
                    unknown => panic!("instruction {at} has code {unknown:#x}"),
                }
            }
        };
        at += 1 + skipped;
    }
}
