//! Resumable uploads by tus 1.0.0, with the extensions creation, termination and expiration.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Extension, body::Body};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_TYPE, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sandbox::{AskedPath, Error, GuestPath, WriteOptions};
use tokio::sync::OwnedMutexGuard;

use super::failure::{Answer, Failure};
use super::intake::{Intake, finish, put_some};
use super::record::{Action, Door};
use super::unfinished::{NewUpload, Stage, Upload, UploadId};
use super::{FileServer, Target, address, upload};
use crate::auth::Principal;
use crate::time;

const VERSION: HeaderValue = HeaderValue::from_static("1.0.0");

const TUS_RESUMABLE: HeaderName = HeaderName::from_static("tus-resumable");
const TUS_VERSION: HeaderName = HeaderName::from_static("tus-version");
const TUS_EXTENSION: HeaderName = HeaderName::from_static("tus-extension");
const TUS_MAX_SIZE: HeaderName = HeaderName::from_static("tus-max-size");
const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");
const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
const UPLOAD_METADATA: HeaderName = HeaderName::from_static("upload-metadata");
const UPLOAD_EXPIRES: HeaderName = HeaderName::from_static("upload-expires");

/// What a sender says of a file, all of it together.
const MOST_METADATA_BYTES: usize = 16 << 10;

type Server = State<Arc<FileServer>>;

/// What is spoken here.
pub async fn options(State(server): Server) -> Response {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(TUS_VERSION, VERSION);
    headers.insert(TUS_EXTENSION, HeaderValue::from_static("creation,termination,expiration"));
    headers.insert(TUS_MAX_SIZE, HeaderValue::from(server.largest.bytes()));
    headers.insert(TUS_RESUMABLE, VERSION);
    response
}

/// `POST /api/sandboxes/{id}/uploads`
pub async fn begin(server: Server, principal: Extension<Principal>, request: Request) -> Response {
    answered(server, principal, request, Action::UploadBegun).await
}

/// `HEAD /api/sandboxes/{id}/uploads/{upload}`
pub async fn ask(server: Server, principal: Extension<Principal>, request: Request) -> Response {
    answered(server, principal, request, Action::UploadAsked).await
}

/// `PATCH /api/sandboxes/{id}/uploads/{upload}`
pub async fn go_on(server: Server, principal: Extension<Principal>, request: Request) -> Response {
    answered(server, principal, request, Action::UploadPart).await
}

/// `DELETE /api/sandboxes/{id}/uploads/{upload}`
pub async fn give_up(server: Server, principal: Extension<Principal>, request: Request) -> Response {
    answered(server, principal, request, Action::UploadGivenUp).await
}

async fn answered(
    State(server): Server,
    Extension(principal): Extension<Principal>,
    request: Request,
    action: Action,
) -> Response {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let mut intake = Intake::new(&parts.headers, body, server.largest.bytes());
    let mut target = None;
    let done = match version(&parts.headers) {
        Ok(()) => server.upload(action, &principal, &parts, &mut intake, &mut target).await,
        Err(failure) => Err(failure),
    };
    let is_other_version = matches!(done, Err(Failure::Precondition(_)));
    let mut response = server.answer(&principal.owner, Door::Token, action, began, (target, done), Some(intake)).await;
    response.headers_mut().insert(TUS_RESUMABLE, VERSION);
    if is_other_version {
        response.headers_mut().insert(TUS_VERSION, VERSION);
    }
    response
}

impl FileServer {
    async fn upload(
        &self,
        action: Action,
        principal: &Principal,
        parts: &Parts,
        intake: &mut Intake,
        place: &mut Option<Target>,
    ) -> Answer {
        // Whoever goes on writes, and whoever gives up takes back what they wrote.
        let mut target = self.sandbox(principal, parts.uri.path(), &http::Method::POST).await?;
        if action == Action::UploadBegun {
            let asked = Asked::of(&parts.headers, &target.info.work_directory)?;
            target.path = asked.path.clone();
            let target = place.insert(target);
            return self.begin(target, asked).await;
        }
        let (_, rest) = address::of_sandbox(parts.uri.path())?;
        let id: UploadId = rest.strip_prefix("uploads/").unwrap_or_default().parse()?;
        let found = self.uploads.find(&principal.owner, &target.info.id, &id)?;
        target.path = found.path.clone();
        *place = Some(target);
        match action {
            Action::UploadPart => self.go_on(&found, &parts.headers, intake).await,
            Action::UploadGivenUp => {
                self.uploads.remove(&found.id);
                // With its turn it is certain that nobody else still writes.
                *found.turn().await.0 = Stage::Over;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            _ => where_it_is(&found).await,
        }
    }

    async fn begin(&self, target: &Target, asked: Asked) -> Answer {
        let Asked { path, length, metadata } = asked;
        upload::check_room(self, target, Some(length)).await?;
        let (owner, sandbox) = (target.info.owner.clone(), target.info.id.clone());
        self.uploads.check(&owner, &sandbox)?;
        let file = target.files.write(&path, WriteOptions::default()).await?;
        let stage = if length == 0 {
            finish(file).await?;
            Stage::Finished
        } else {
            Stage::Open { file, offset: 0 }
        };
        let begun = self.uploads.add(NewUpload { owner, sandbox, path, length, metadata }, stage)?;
        let mut response = empty(StatusCode::CREATED);
        let address = format!("/api/sandboxes/{}/uploads/{}", begun.sandbox, begun.id);
        if let Ok(address) = HeaderValue::try_from(address) {
            response.headers_mut().insert(LOCATION, address);
        }
        response.headers_mut().insert(UPLOAD_OFFSET, HeaderValue::from(0));
        say_expiry(&mut response, &begun);
        Ok(response)
    }

    async fn go_on(&self, upload: &Upload, headers: &HeaderMap, intake: &mut Intake) -> Answer {
        if headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) != Some(b"application/offset+octet-stream") {
            return Err(Failure::MediaType("a part of an upload is application/offset+octet-stream"));
        }
        let from = number(headers, &UPLOAD_OFFSET)?
            .ok_or_else(|| Error::invalid_input("a part of an upload says in Upload-Offset where it begins"))?;
        let (mut stage, interrupted) = upload.turn().await;
        let reached = match &*stage {
            Stage::Open { offset, .. } => *offset,
            Stage::Finished => upload.length,
            Stage::Over => return Err(Failure::Nothing),
        };
        if from != reached {
            return Err(Failure::Conflict("the upload is not there; ask with HEAD where it is"));
        }
        let left = upload.length - reached;
        if intake.declared().is_some_and(|declared| declared > left) {
            return Err(Failure::TooMany("the part is longer than what is missing of the upload"));
        }
        let taken = tokio::select! {
            taken = take(&mut stage, upload.length, intake) => taken,
            () = interrupted.cancelled() => Err(Failure::Conflict("the upload went on by another request")),
        };
        let reached = match &*stage {
            Stage::Open { offset, .. } => *offset,
            Stage::Finished => upload.length,
            Stage::Over => {
                self.uploads.remove(&upload.id);
                reached
            }
        };
        taken?;
        if reached == upload.length {
            // Whatever becomes of the request: that the file is in its place must be known.
            let finished = tokio::spawn(complete(stage)).await;
            finished.map_err(|cause| Error::internal("the upload could not be finished").with_cause(cause))??;
        }
        let mut response = empty(StatusCode::NO_CONTENT);
        response.headers_mut().insert(UPLOAD_OFFSET, HeaderValue::from(reached));
        say_expiry(&mut response, upload);
        Ok(response)
    }
}

/// All that comes. Dropped in the middle, it can go on from where it is.
async fn take(stage: &mut Stage, length: u64, intake: &mut Intake) -> Result<(), Failure> {
    while let Some(piece) = intake.next().await? {
        let Stage::Open { file, offset } = stage else { return Ok(()) };
        let fits = usize::try_from(length - *offset).unwrap_or(usize::MAX).min(piece.len());
        // As far as each goes, so that what is interrupted is known to the byte.
        let mut rest = &piece[..fits];
        while !rest.is_empty() {
            match put_some(file, rest).await {
                Ok(count) => {
                    *offset += count as u64;
                    rest = &rest[count..];
                }
                Err(stopped) => {
                    let Stage::Open { file, .. } = std::mem::replace(stage, Stage::Over) else { return Ok(()) };
                    return Err(stopped.explain(file).await);
                }
            }
        }
        if fits < piece.len() {
            return Err(Failure::TooMany("the part is longer than what is missing of the upload"));
        }
    }
    Ok(())
}

/// The file of an upload of which all has come into its place.
async fn complete(mut stage: OwnedMutexGuard<Stage>) -> Result<(), Failure> {
    if let Stage::Open { file, .. } = std::mem::replace(&mut *stage, Stage::Over) {
        finish(file).await?;
    }
    *stage = Stage::Finished;
    Ok(())
}

async fn where_it_is(upload: &Upload) -> Answer {
    let (stage, _) = upload.turn().await;
    let offset = match &*stage {
        Stage::Open { offset, .. } => *offset,
        Stage::Finished => upload.length,
        Stage::Over => return Err(Failure::Nothing),
    };
    let mut response = empty(StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(UPLOAD_OFFSET, HeaderValue::from(offset));
    headers.insert(UPLOAD_LENGTH, HeaderValue::from(upload.length));
    if !upload.metadata.is_empty()
        && let Ok(metadata) = HeaderValue::try_from(&upload.metadata)
    {
        headers.insert(UPLOAD_METADATA, metadata);
    }
    say_expiry(&mut response, upload);
    Ok(response)
}

fn say_expiry(response: &mut Response, upload: &Upload) {
    if let Ok(expires) = HeaderValue::try_from(time::http_date(upload.expires())) {
        response.headers_mut().insert(UPLOAD_EXPIRES, expires);
    }
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn version(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(TUS_RESUMABLE) {
        Some(version) if *version == VERSION => Ok(()),
        Some(_) | None => Err(Failure::Precondition("this is for uploads by tus: Tus-Resumable: 1.0.0")),
    }
}

/// An upload as somebody asks for it.
#[derive(Debug)]
struct Asked {
    path: GuestPath,
    length: u64,
    metadata: String,
}

impl Asked {
    fn of(headers: &HeaderMap, work_directory: &GuestPath) -> sandbox::Result<Self> {
        let length = number(headers, &UPLOAD_LENGTH)?
            .ok_or_else(|| Error::invalid_input("an upload says in Upload-Length how long it will be"))?;
        let wrong = || {
            Error::invalid_input("Upload-Metadata makes no sense")
                .with_hint("it is a list of names, each with a value in base64: path d29ya3NwYWNlL2E=")
        };
        let metadata = match headers.get(UPLOAD_METADATA) {
            Some(metadata) => metadata.to_str().map_err(|_| wrong())?.to_owned(),
            None => String::new(),
        };
        if metadata.len() > MOST_METADATA_BYTES {
            return Err(wrong());
        }
        let value = |wanted: &str| {
            let mut pairs = metadata.split(',').map(|pair| pair.trim().split_once(' ').unwrap_or((pair.trim(), "")));
            let found = pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.trim());
            found.map(|value| BASE64_STANDARD.decode(value).map_err(|_| wrong())).transpose()
        };
        let path = match (value("path")?, value("filename")?) {
            (Some(path), _) => AskedPath::new(&path)?.below(work_directory)?,
            (None, Some(name)) if !name.contains(&b'/') => work_directory.join(&name)?,
            (None, Some(_)) => return Err(Error::invalid_input("a file's name is one name, without a path")),
            (None, None) => {
                return Err(Error::invalid_input("the upload does not say where it is to be")
                    .with_hint("name its path in Upload-Metadata, or its filename in the work directory"));
            }
        };
        Ok(Self { path, length, metadata })
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> sandbox::Result<Option<u64>> {
    let wrong = || Error::invalid_input(format!("{name} is not a number"));
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(name) { Err(wrong()) } else { Ok(None) };
    };
    let text = value.to_str().map_err(|_| wrong())?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse().map(Some).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(length: &'static str, metadata: &str) -> Option<(Vec<u8>, u64)> {
        let mut headers = HeaderMap::new();
        headers.insert(UPLOAD_LENGTH, HeaderValue::from_static(length));
        headers.insert(UPLOAD_METADATA, HeaderValue::try_from(metadata).unwrap());
        Asked::of(&headers, &GuestPath::workspace()).ok().map(|asked| (asked.path.as_bytes().to_vec(), asked.length))
    }

    fn pair(name: &str, value: &[u8]) -> String {
        format!("{name} {}", BASE64_STANDARD.encode(value))
    }

    #[test]
    fn an_upload_says_where_it_is_to_be() {
        let at = |metadata: &str| asked("7", metadata).map(|(path, _)| path);
        assert_eq!(at(&pair("path", b"/tmp/a")).unwrap(), b"/tmp/a");
        assert_eq!(at(&pair("path", b"b/c\xff")).unwrap(), b"/workspace/b/c\xff");
        assert_eq!(at(&format!("is_confidential,{}", pair("filename", b"d e"))).unwrap(), b"/workspace/d e");
        for wrong in [
            "",
            "path",
            "path !",
            &pair("path", b"../a"),
            &pair("path", b""),
            &pair("path", b"a\0"),
            &pair("filename", b"../a"),
            &pair("filename", b".."),
            &pair("filename", b"/etc/passwd"),
        ] {
            assert_eq!(at(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_length_is_a_number() {
        let path = pair("path", b"a");
        assert_eq!(asked("18446744073709551615", &path).unwrap().1, u64::MAX);
        for wrong in ["", "-1", "+1", "1.5", "0x10", "18446744073709551616", "a"] {
            assert_eq!(asked(wrong, &path), None, "{wrong:?}");
        }
    }
}
