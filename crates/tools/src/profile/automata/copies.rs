//! Files between containers and the host, of which only what the operator opened can be reached.

use std::sync::Arc;

use sandbox::{Error, ErrorKind, FileKind, Files, GuestPath, Result, SandboxInfo};

use super::super::arguments::Arguments;
use super::super::containers;
use super::{Failure, Told, cancelled, clean, inside, optional, required};
use crate::call::{Call, Copied, HostFiles};

pub async fn file_in(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = required(arguments, "container_id")?;
    let host = clean(required(arguments, "local_src_file")?);
    let no_source = || Failure::of("Error accessing source file");
    let source = opened(call).and_then(|files| files.open(&host)).map_err(no_source())?;
    match source.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Failure::said("local_src_file must be a file, not a directory")),
        FileKind::Link | FileKind::Other => {
            return Err(no_source()(Error::invalid_input("it is not a regular file")));
        }
    }
    let not_copied = || Failure::of("Error copying file to container");
    let guest = destination(optional(arguments, "dest_path"), &host).map_err(not_copied())?;
    let no_directory = || Failure::of("Error creating destination directory");
    let (_, files) = container(call, id).await.map_err(no_directory())?;
    if let Some(above) = guest.parent() {
        files.make_directory(&above).await.map_err(no_directory())?;
    }
    unless_cancelled(call, source.copy_to(&*files, &guest)).await.map_err(not_copied())?;
    Ok(Told::Done(format!("Successfully copied {host} to {guest} in container {id}")))
}

/// What is in the directory, into the destination.
pub async fn project_in(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = required(arguments, "container_id")?;
    let host = clean(required(arguments, "local_src_dir")?);
    let no_source = Failure::of("Error accessing source directory");
    let source = opened(call).and_then(|files| files.open(&host)).map_err(no_source)?;
    if source.kind() != FileKind::Directory {
        return Err(Failure::said("local_src_dir must be a directory"));
    }
    let not_copied = || Failure::of("Error copying to container");
    let guest = destination(optional(arguments, "dest_dir"), &host).map_err(not_copied())?;
    let (_, files) = container(call, id).await.map_err(not_copied())?;
    unless_cancelled(call, source.copy_to(&*files, &guest)).await.map_err(not_copied())?;
    Ok(Told::Done(format!("Successfully copied {host} to {guest} in container {id}")))
}

pub async fn file_out(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = required(arguments, "container_id")?;
    let path = required(arguments, "container_src_path")?;
    let not_copied = || Failure::of("Error copying file from container");
    let guest = inside(path).map_err(not_copied())?;
    let named = optional(arguments, "local_dest_path").map(clean);
    let host = match &named {
        Some(host) => host.clone(),
        None => own_name(&guest).map_err(not_copied())?,
    };
    let opened = opened(call).map_err(not_copied())?;
    let (sandbox, files) = container(call, id).await.map_err(not_copied())?;
    let copied = unless_cancelled(call, opened.copy_file_out(&*files, &guest, &host, sandbox.limits)).await;
    copied.map_err(|error| match (&named, error.kind()) {
        (None, ErrorKind::Denied) => not_copied()(
            Error::denied("the directory that the server was started in is not open to containers")
                .with_hint(format!("give local_dest_path, a path below {}", call.policy.roots.join(" or "))),
        ),
        (Some(_) | None, _) => not_copied()(error),
    })?;
    Ok(Told::Done(format!("Successfully copied {guest} from container {id} to {host}")))
}

/// The places of the host, if there are any.
fn opened(call: &Call) -> Result<Arc<dyn HostFiles>> {
    call.host_files.clone().ok_or_else(|| {
        Error::denied("no directory of the host is open to containers")
            .with_hint("the operator opens one with --allow-path DIR; write_file_sandbox needs none")
    })
}

async fn container(call: &Call, id: &str) -> Result<(SandboxInfo, Box<dyn Files>)> {
    let sandbox = containers::find(call, id).await?;
    let files = call.service.files(&call.owner, &sandbox.id)?;
    Ok((sandbox, files))
}

/// Where it goes: as asked, or under its own name.
fn destination(asked: Option<&str>, host: &str) -> Result<GuestPath> {
    match asked {
        Some(path) => inside(path),
        None => {
            let name = host.rsplit('/').next().filter(|name| !matches!(*name, "" | "." | ".."));
            let name = name.ok_or_else(|| {
                Error::invalid_input(format!("{host} has no name of its own")).with_hint("name the destination")
            })?;
            inside(name)
        }
    }
}

fn own_name(guest: &GuestPath) -> Result<String> {
    let name = guest.file_name().ok_or_else(|| Error::invalid_input(format!("{guest} is a directory, not a file")))?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

async fn unless_cancelled(call: &Call, copying: impl Future<Output = Result<Copied>>) -> Result<Copied> {
    tokio::select! {
        copied = copying => copied,
        () = call.cancelled.cancelled() => Err(cancelled()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_name_unless_it_is_given_another() {
        let to = |asked: Option<&str>, host: &str| destination(asked, host).map(|path| path.to_string());
        assert_eq!(to(None, "/home/user/project").unwrap(), "/app/project");
        assert_eq!(to(None, "main.py").unwrap(), "/app/main.py");
        assert_eq!(to(Some("src/x.py"), "main.py").unwrap(), "/app/src/x.py");
        assert_eq!(to(Some("/opt/x"), "main.py").unwrap(), "/opt/x");
        for nameless in ["/", ".", "../.."] {
            assert!(to(None, nameless).is_err(), "{nameless:?}");
        }
    }
}
