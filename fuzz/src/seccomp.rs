//! The filter against its policy: the instructions that the kernel gets must answer as the policy reads.

use engine_native::seccomp::{Answer, policy, program};

use crate::bytes::Bytes;

pub const SEEDS: &[&[u8]] = &[
    b"\x00\x00\x00\x00\x00",
    b"\x00\x38\x00\x00\x00\x00\x00\x00\x10",
    b"\x01\x29\x00\x00\x00\x01",
    b"\x00\x10\x00\x00\x40",
    b"\x02\x87\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff",
];

/// An architecture, a number, six arguments.
pub fn seccomp(data: &[u8]) {
    let mut bytes = Bytes(data);
    let native = policy().architecture().audit_code();
    let architecture = match bytes.byte() {
        0..=200 => native,
        201..=220 => 0x4000_0003,
        _ => bytes.number(4) as u32,
    };
    let number = bytes.number(4) as u32;
    let arguments: [u64; 6] = std::array::from_fn(|_| bytes.number(8));
    let expected = policy().decide(architecture, number, &arguments);
    let verdict = interpret(program(), architecture, number, &arguments);
    let answered = match verdict & 0xffff_0000 {
        0x7fff_0000 => Ok(Answer::Allow),
        0x0005_0000 => Err((verdict & 0xffff) as i32),
        other => panic!("the filter answers {other:#x}"),
    };
    match answered {
        Ok(answer) => assert_eq!(answer, expected, "call {number:#x} of {architecture:#x} with {arguments:x?}"),
        Err(errno) => {
            assert_eq!(Some(errno), expected.errno(), "call {number:#x} of {architecture:#x} with {arguments:x?}")
        }
    }
}

/// Classic BPF as the kernel runs it for seccomp: loads of 32-bit words, jumps, a few operations, return.
fn interpret(program: &[u8], architecture: u32, number: u32, arguments: &[u64; 6]) -> u32 {
    let mut data = Vec::with_capacity(64);
    data.extend(number.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend(0u64.to_le_bytes());
    for argument in arguments {
        data.extend(argument.to_le_bytes());
    }
    let word = |at: u32| u32::from_le_bytes(data[at as usize..at as usize + 4].try_into().expect("four bytes"));
    let mut accumulator = 0u32;
    let mut at = 0usize;
    // Jumps only go forward, so every program ends.
    loop {
        let instruction = &program[at * 8..at * 8 + 8];
        let code = u16::from_le_bytes([instruction[0], instruction[1]]);
        let (yes, no) = (usize::from(instruction[2]), usize::from(instruction[3]));
        let constant = u32::from_le_bytes(instruction[4..8].try_into().expect("four bytes"));
        at += 1;
        let jump = |holds: bool| if holds { yes } else { no };
        match code {
            0x20 => accumulator = word(constant),
            0x05 => at += constant as usize,
            0x15 => at += jump(accumulator == constant),
            0x25 => at += jump(accumulator > constant),
            0x35 => at += jump(accumulator >= constant),
            0x45 => at += jump(accumulator & constant != 0),
            0x54 => accumulator &= constant,
            0x06 => return constant,
            other => panic!("the filter has an instruction {other:#x} that this does not know"),
        }
    }
}
