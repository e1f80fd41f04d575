//! Where the code of `run` comes from, and what then is left for the program to read.

use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::path::Path;

use sandbox::{Error, Result, Runners};

use crate::attach::Input;
use crate::output::reason;

/// Far more than anybody writes, far less than a wrong file can have.
const MOST_CODE: u64 = 32 << 20;

#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub language: String,
    pub code: Vec<u8>,
    pub input: Input,
}

/// The first of these that fits: a language with code, a language with a file, a language and our stdin, a file alone.
///
/// `python script.py` is what people type, and the name of a Python file is not a Python program, so that is a file too.
pub fn resolve(runners: &Runners, language: &str, code: Option<&str>, file: Option<&Path>) -> Result<Source> {
    let unknown = match runners.find(language) {
        Ok(runner) => {
            let named =
                code.map(Path::new).filter(|path| by_extension(runners, path).is_ok_and(|name| name == runner.name));
            let (code, input) = match named.filter(|path| path.is_file()) {
                Some(path) => read(&runner.name, None, Some(path))?,
                None => read(&runner.name, code, file)?,
            };
            return Ok(Source { language: runner.name.clone(), code, input });
        }
        Err(unknown) => unknown,
    };
    let path = Path::new(language);
    if !path.is_file() {
        return Err(unknown);
    }
    if code.is_some() || file.is_some() {
        return Err(Error::invalid_input(format!("{language} is a file, so there is no place for more code"))
            .with_hint(format!("arguments of the program go behind --, as in sandpen run {language} -- ARGUMENT")));
    }
    Ok(Source { language: by_extension(runners, path)?, code: read_file(path)?, input: Input::Ours })
}

fn read(language: &str, code: Option<&str>, file: Option<&Path>) -> Result<(Vec<u8>, Input)> {
    match (code, file) {
        (Some("-"), None) => Ok((read_stdin()?, Input::Nothing)),
        (Some(code), None) => Ok((code.as_bytes().to_vec(), Input::Ours)),
        (None, Some(path)) if path == Path::new("-") => Ok((read_stdin()?, Input::Nothing)),
        (None, Some(path)) => Ok((read_file(path)?, Input::Ours)),
        (None, None) if !stdin().is_terminal() => Ok((read_stdin()?, Input::Nothing)),
        (None, None) => Err(Error::invalid_input("there is no code to run").with_hint(format!(
            "write it behind the language, name a --file, or pipe it in: sandpen run {language} < FILE"
        ))),
        (Some(_), Some(_)) => Err(Error::invalid_input("there are two codes to run, an argument and a file")),
    }
}

fn by_extension(runners: &Runners, path: &Path) -> Result<String> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.and_then(|extension| runners.find(extension).ok()).map(|runner| runner.name.clone()).ok_or_else(|| {
        let name = path.display();
        Error::invalid_input(format!("the name {name} does not tell the language"))
            .with_hint(format!("name it, as in sandpen run python --file {name}"))
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let unreadable =
        |cause: &std::io::Error| Error::invalid_input(format!("{} cannot be read: {}", path.display(), reason(cause)));
    let file = File::open(path).map_err(|cause| unreadable(&cause))?;
    bounded(file).map_err(|cause| unreadable(&cause))?.ok_or_else(too_long)
}

fn read_stdin() -> Result<Vec<u8>> {
    let unreadable = |cause| Error::invalid_input(format!("stdin cannot be read: {}", reason(&cause)));
    bounded(stdin().lock()).map_err(unreadable)?.ok_or_else(too_long)
}

fn bounded(source: impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut code = Vec::new();
    source.take(MOST_CODE + 1).read_to_end(&mut code)?;
    Ok((code.len() as u64 <= MOST_CODE).then_some(code))
}

fn too_long() -> Error {
    Error::limit_exceeded("the code is longer than 32 MiB").with_hint("bring data in with --input")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(language: &str, code: Option<&str>, file: Option<&Path>) -> Result<(String, Vec<u8>, Input)> {
        let Source { language, code, input } = resolve(&Runners::built_in(), language, code, file)?;
        Ok((language, code, input))
    }

    #[test]
    fn code_and_files_leave_stdin_to_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script.py");
        std::fs::write(&script, "print(1)").unwrap();
        let expected = || ("python".to_owned(), b"print(1)".to_vec(), Input::Ours);
        assert_eq!(resolved("Python", Some("print(1)"), None).unwrap(), expected());
        assert_eq!(resolved("py", None, Some(&script)).unwrap(), expected());
        assert_eq!(resolved("py", script.to_str(), None).unwrap(), expected());
        assert_eq!(resolved(script.to_str().unwrap(), None, None).unwrap(), expected());
    }

    #[test]
    fn a_file_of_another_language_is_taken_as_code() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script.py");
        std::fs::write(&script, "print(1)").unwrap();
        let path = script.to_str().unwrap();
        assert_eq!(resolved("bash", Some(path), None).unwrap().1, path.as_bytes());
    }

    #[test]
    fn what_cannot_be_code_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        let nameless = directory.path().join("script");
        std::fs::write(&nameless, "print(1)").unwrap();
        let nameless = nameless.to_str().unwrap();
        for (language, code, file) in [(nameless, None, None), (nameless, Some("1"), None), ("cobol", Some("1"), None)]
        {
            assert!(resolved(language, code, file).unwrap_err().hint().is_some(), "{language}");
        }
        assert!(resolved("python", None, Some(Path::new("/no/such/file"))).is_err());
        assert!(resolved("python", None, Some(Path::new("/dev/zero"))).is_err());
    }
}
