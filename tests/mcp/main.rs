//! What no client's library would do to a server: thousands of cancellations, floods, readers that do not read, and an
//! end in the middle of everything. Over the real program's stdin and stdout.
//!
//! `SANDPEN_TEST_CANCELS` sets the number of cancellations, `SANDPEN_TEST_SEED` repeats their moments.

mod cancel;
mod crowd;
mod end;
mod flood;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::Result;

type Test = fn() -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("a cancelled run leaves no process, no reply and no slot", cancel::at_random_moments),
    ("a thousand requests in flight are each answered once", crowd::a_thousand_at_once),
    ("a flood of output does not fill the server", flood::one_gibibyte),
    ("a flood of output that is watched does not fill the server", flood::one_gibibyte_watched),
    ("a client that does not read does not fill the server", flood::a_reader_that_does_not_read),
    ("closing stdin ends everything that runs", end::stdin_closed_in_the_middle),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One after the other: they look at memory and at what is left, and each is a crowd by itself.
    arguments.test_threads = Some(1);
    let trial = |&(name, test): &(&'static str, Test)| {
        Trial::test(name, move || test().map_err(|trouble| Failed::from(trouble.to_string())))
    };
    libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect()).exit_code()
}
