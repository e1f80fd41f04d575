//! Files on their way in, by one request each: whole or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use sandbox::{ByteSize, Error, ErrorKind, Files, GuestPath, Overwrite, WriteOptions};
use serde_json::json;

use super::failure::{Answer, Failure};
use super::form::Form;
use super::intake::{Intake, finish, pour, put as put_piece};
use super::{FileServer, Target};
use crate::http::answer;
use crate::random;

/// Files of one form. Each costs a process in the sandbox.
const MOST_PARTS: usize = 1000;

/// What is announced to be smaller is not worth asking how much room there is.
const WORTH_ASKING: ByteSize = ByteSize::mebibytes(1);

/// The file of the address, as the body is.
pub async fn put(server: &FileServer, target: &Target, headers: &HeaderMap, intake: &mut Intake) -> Answer {
    let overwrite = overwrite(headers)?;
    check_room(server, target, intake.declared()).await?;
    let is_new = target.files.stat(&target.path).await.is_err();
    let options = WriteOptions { overwrite, ..WriteOptions::default() };
    let file = target.files.write(&target.path, options).await.map_err(|error| exists(overwrite, error))?;
    let bytes = pour(intake, file).await.map_err(|failure| match failure {
        Failure::Service(error) => exists(overwrite, error),
        other => other,
    })?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, &json!({ "path": target.path.to_string_lossy(), "bytes": bytes })))
}

/// The files of a form, into the directory of the address.
pub async fn post(server: &FileServer, target: &Target, headers: &HeaderMap, intake: &mut Intake) -> Answer {
    let overwrite = overwrite(headers)?;
    check_room(server, target, intake.declared()).await?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(mut form) = Form::new(content_type, intake) else {
        return Err(Failure::MediaType(
            "a form is taken here: multipart/form-data; a file itself is sent by PUT, a directory is made with ?directory",
        ));
    };
    let mut taken = BTreeSet::new();
    let mut files = Vec::new();
    while let Some(head) = form.next().await? {
        let Some(name) = head.file_name else { continue };
        let path = below(&target.path, &name)?;
        if taken.len() == MOST_PARTS {
            return Err(Failure::TooMany("a form may bring 1000 files"));
        }
        if !taken.insert(name) {
            return Err(Error::invalid_input(format!("{path} is there twice")).into());
        }
        let options = WriteOptions { overwrite, ..WriteOptions::default() };
        let mut file = target.files.write(&path, options).await.map_err(|error| exists(overwrite, error))?;
        let mut bytes = 0;
        while let Some(piece) = form.piece().await? {
            bytes += piece.len() as u64;
            if let Err(stopped) = put_piece(&mut file, &piece).await {
                return Err(stopped.explain(file).await);
            }
        }
        finish(file).await?;
        files.push(json!({ "path": path.to_string_lossy(), "bytes": bytes }));
    }
    Ok(answer::json(StatusCode::CREATED, &json!({ "files": files })))
}

/// A new directory with what is in an archive: all of it, or no directory.
pub async fn put_archive(
    server: &FileServer,
    target: &Target,
    headers: &HeaderMap,
    format: &str,
    intake: &mut Intake,
) -> Answer {
    if format != "tar" {
        return Err(Error::invalid_input("archives are taken as tar, without compression").into());
    }
    overwrite(headers)?;
    check_room(server, target, intake.declared()).await?;
    let there = |path: &GuestPath| {
        Error::new(ErrorKind::AlreadyExists, format!("{path} exists already"))
            .with_hint("an archive becomes a new directory; name another, or delete this one first")
    };
    if target.files.stat(&target.path).await.is_ok() {
        return Err(there(&target.path).into());
    }
    let parent = target.path.parent().ok_or_else(|| there(&target.path))?;
    let staging = Staging::new(server.service.files(&target.info.owner, &target.info.id)?, &parent)?;
    let archive = staging.files.unpack(&staging.path).await?;
    let bytes = pour(intake, archive).await?;
    staging.files.rename(&staging.path, &target.path).await?;
    staging.stays();
    Ok(answer::json(StatusCode::CREATED, &json!({ "path": target.path.to_string_lossy(), "bytes": bytes })))
}

/// Where an archive is unpacked before it is known to be whole. Removed, whatever becomes of the request.
struct Staging {
    files: Arc<dyn Files>,
    path: GuestPath,
    goes: bool,
}

impl Staging {
    fn new(files: Box<dyn Files>, parent: &GuestPath) -> Result<Self, Failure> {
        let path = parent.join(format!(".sandpen-{}.part", random::digits()?).as_bytes())?;
        Ok(Self { files: files.into(), path, goes: true })
    }

    fn stays(mut self) {
        self.goes = false;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.goes {
            return;
        }
        let (files, path) = (self.files.clone(), self.path.clone());
        tokio::spawn(async move {
            // Whoever unpacks learns of the end by itself, and may make one file more meanwhile.
            for _ in 0..20 {
                match files.remove(&path).await {
                    Err(error) if error.kind() == ErrorKind::NotFound => return,
                    Ok(()) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
    }
}

pub async fn make_directory(target: &Target) -> Answer {
    target.files.make_directory(&target.path).await?;
    Ok(answer::json(StatusCode::CREATED, &json!({ "path": target.path.to_string_lossy() })))
}

pub async fn remove(target: &Target) -> Answer {
    target.files.remove(&target.path).await?;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

/// One name in a directory, byte for byte.
pub fn below(directory: &GuestPath, name: &[u8]) -> Result<GuestPath, Failure> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
        return Err(Error::invalid_input("a file's name is one name, without a path").into());
    }
    Ok(directory.join(name)?)
}

/// Before anything is read: what cannot be taken is refused by its length alone.
pub async fn check_room(server: &FileServer, target: &Target, declared: Option<u64>) -> Result<(), Failure> {
    let Some(declared) = declared else { return Ok(()) };
    if declared > server.largest.bytes() {
        return Err(Failure::TooLarge);
    }
    let disk = target.info.limits.disk.bytes();
    if declared > disk {
        return Err(Failure::NoRoom);
    }
    if declared < WORTH_ASKING.bytes() {
        return Ok(());
    }
    let used = server.service.usage(&target.info.owner, &target.info.id).await?.disk.unwrap_or(0);
    if used.saturating_add(declared) > disk { Err(Failure::NoRoom) } else { Ok(()) }
}

/// Whether a file that is there may be replaced.
fn overwrite(headers: &HeaderMap) -> Result<Overwrite, Failure> {
    if headers.contains_key(IF_MATCH) {
        return Err(Error::invalid_input("If-Match is not kept here: nobody could hold the file meanwhile").into());
    }
    match headers.get(IF_NONE_MATCH).map(http::HeaderValue::as_bytes) {
        None => Ok(Overwrite::Replace),
        Some(b"*") => Ok(Overwrite::Refuse),
        Some(_) => {
            Err(Error::invalid_input("If-None-Match is kept here as * alone: only if there is no such file").into())
        }
    }
}

fn exists(overwrite: Overwrite, error: Error) -> Failure {
    match (overwrite, error.kind()) {
        (Overwrite::Refuse, ErrorKind::AlreadyExists) => Failure::Precondition("there is such a file already"),
        (Overwrite::Refuse | Overwrite::Replace, _) => error.into(),
    }
}
