//! A file of a container by way of commands, of whose output only so much is kept.

/// Bytes of a file that one answer has room for in base64, which makes a third more of them.
const PART: u64 = 512 * 1024;

/// How all of it is read, in words for a model.
pub fn way_out(path: &str, bytes: u64) -> String {
    match bytes.div_ceil(PART) {
        0 | 1 => format!("execute_command_in_container with base64 {path}, decoded to context.tar"),
        parts => format!(
            "it has {bytes} bytes, too many for one answer. For each N from 0 to {last}, execute_command_in_container with \
             sh -c 'dd if={path} bs={PART} skip=N count=1 2>/dev/null | base64'; decode each answer by itself and append \
             it to context.tar",
            last = parts - 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sandbox::CappedOutput;

    use super::*;
    use crate::profile::work::KEPT;

    /// What a command prints, as much as is kept of it.
    fn answer(command: &[&str]) -> CappedOutput {
        let mut kept = CappedOutput::new(KEPT);
        kept.push(&Command::new(command[0]).args(&command[1..]).output().unwrap().stdout);
        kept
    }

    fn decoded(answer: &CappedOutput) -> Vec<u8> {
        assert!(!answer.is_truncated(), "{} bytes are left out", answer.dropped());
        let text: String = answer.to_text().split_whitespace().collect();
        STANDARD.decode(text).unwrap()
    }

    #[test]
    fn a_file_that_fits_into_no_answer_is_read_whole_as_the_words_say() {
        let contents: Vec<u8> = (0..PART * 3 + 5).map(|number| (number % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&contents).unwrap();
        let path = file.path().to_str().unwrap();
        assert!(answer(&["base64", path]).is_truncated(), "it could be read at once");
        let words = way_out(path, contents.len() as u64);
        let last: u64 = words.split("from 0 to ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let script = words.split('\'').nth(1).unwrap();
        let parts = (0..=last).map(|part| {
            let script = script.replace("skip=N", &format!("skip={part}"));
            decoded(&answer(&["sh", "-c", &script]))
        });
        assert!(parts.collect::<Vec<_>>().concat() == contents, "something is lost");
    }

    #[test]
    fn a_file_that_fits_is_read_at_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; PART as usize]).unwrap();
        let path = file.path().to_str().unwrap();
        assert!(way_out(path, PART).contains(&format!("with base64 {path}, decoded")));
        assert_eq!(decoded(&answer(&["base64", path])).len() as u64, PART);
    }
}
