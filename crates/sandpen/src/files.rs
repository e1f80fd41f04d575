//! A sandbox's files over HTTP: downloads, uploads, archives, and links that need no token.
//!
//! All work on files is the service's, which does it inside the sandbox; no path here is one of the host.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, head, post};
use axum::{Extension, Router};
use http::Method;
use http::request::Parts;
use sandbox::{ByteSize, Files, GuestPath, Owner, SandboxInfo, SandboxService};
use tools::Catalog;

use self::failure::{Answer, Failure};
use self::intake::Intake;
use self::link::{Grant, KeyFile, Signer};
use self::record::{Action, Door};
use self::unfinished::Uploads;
use crate::audit::{Deed, Recorder};
use crate::auth::oauth::address::PublicUrl;
use crate::auth::scope::Scope;
use crate::auth::{Insufficient, Principal};

mod address;
mod archive;
pub mod artifacts;
mod download;
mod failure;
mod form;
mod intake;
pub mod link;
mod links;
mod part;
mod record;
mod served;
mod tus;
mod unfinished;
mod upload;
mod zip;

/// What the operator lets be done by tools, and so here: nothing that was taken away there is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    pub read: bool,
    pub write: bool,
    pub delete: bool,
}

impl Offers {
    pub fn of(catalog: &Catalog) -> Self {
        let has = |tool: &str| catalog.find(tool).is_some();
        Self { read: has("read_file") && has("list_files"), write: has("write_file"), delete: has("delete_file") }
    }
}

/// All that answers need.
#[derive(Debug)]
pub struct FileServer {
    service: SandboxService,
    signer: Signer,
    uploads: Arc<Uploads>,
    largest: ByteSize,
    offers: Offers,
    recorder: Recorder,
    reached: Reached,
    zips: Arc<archive::Places>,
}

/// Where whoever is given a link finds the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// There, whoever asks.
    At(PublicUrl),
    /// Where whoever asks for the link has reached it, by this scheme unless a proxy says another one.
    AsAsked { scheme: &'static str },
}

/// A place in a sandbox of somebody who may go there.
struct Target {
    info: SandboxInfo,
    files: Box<dyn Files>,
    path: GuestPath,
}

impl FileServer {
    /// Must be called inside a runtime.
    pub fn new(
        service: SandboxService,
        key: KeyFile,
        largest: ByteSize,
        offers: Offers,
        recorder: Recorder,
        reached: Reached,
    ) -> Arc<Self> {
        let uploads = Uploads::start(&service);
        let (signer, zips) = (Signer::new(key), Arc::default());
        Arc::new(Self { service, signer, uploads, largest, offers, recorder, reached, zips })
    }

    /// For those who are known.
    pub fn routes(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/api/sandboxes/{id}/files", any(files))
            .route("/api/sandboxes/{id}/files/", any(files))
            .route("/api/sandboxes/{id}/files/{*path}", any(files))
            .route("/api/sandboxes/{id}/links", post(links::make))
            .route("/api/sandboxes/{id}/uploads", post(tus::begin).options(tus::options))
            .route(
                "/api/sandboxes/{id}/uploads/{upload}",
                head(tus::ask).patch(tus::go_on).delete(tus::give_up).options(tus::options),
            )
            .with_state(self.clone())
    }

    /// For whoever has a link.
    pub fn links(self: &Arc<Self>) -> Router {
        links::routes(self.clone())
    }

    /// The sandbox of an address, for somebody who may do this there. One that is somebody else's is not there.
    async fn sandbox(&self, principal: &Principal, path: &str, method: &Method) -> Result<Target, Failure> {
        let (is_offered, scope) = match *method {
            Method::GET | Method::HEAD => (self.offers.read, Scope::Read),
            Method::DELETE => (self.offers.delete, Scope::Run),
            _ => (self.offers.write, Scope::Run),
        };
        if !principal.scopes.allow(scope) {
            return Err(Failure::Scope(Insufficient(scope)));
        }
        if !is_offered {
            return Err(Failure::NotOffered);
        }
        let (named, _) = address::of_sandbox(path)?;
        let info = self.service.find(&principal.owner, named).await?;
        let files = self.service.files(&principal.owner, &info.id)?;
        let path = info.work_directory.clone();
        Ok(Target { info, files, path })
    }

    /// The file of a link, if there still is its sandbox.
    async fn granted_target(&self, grant: &Grant) -> sandbox::Result<Target> {
        let info = self.service.find(&grant.owner, grant.sandbox.as_str()).await?;
        let files = self.service.files(&grant.owner, &info.id)?;
        Ok(Target { info, files, path: grant.path.clone() })
    }

    /// Write down what was done, and say it.
    async fn answer(
        &self,
        owner: &Owner,
        door: Door,
        action: Action,
        began: Instant,
        (target, done): (Option<Target>, Answer),
        intake: Option<Intake>,
    ) -> Response {
        let response = match done {
            Ok(response) => response,
            Err(failure) => {
                if let Some(intake) = intake {
                    intake.farewell(&failure).await;
                }
                failure.into_response()
            }
        };
        let (sandbox, path) = target.map(|target| (target.info.id, target.path)).unzip();
        self.recorder.record(Deed::Files {
            owner: owner.clone(),
            sandbox,
            action: action.as_str(),
            door: door.as_str(),
            path,
            status: response.status().as_u16(),
            took: began.elapsed(),
        });
        served::confine(response)
    }
}

/// `/api/sandboxes/{id}/files/…`
async fn files(
    State(server): State<Arc<FileServer>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let mut intake = Intake::new(&parts.headers, body, server.largest.bytes());
    let action = action(&parts);
    let (target, done) = match server.target(&principal, &parts).await {
        Ok(target) => server.act(action, target, &parts, &mut intake).await,
        Err(failure) => (None, Err(failure)),
    };
    server.answer(&principal.owner, Door::Token, action, began, (target, done), Some(intake)).await
}

/// What a request is about, before anything is done.
fn action(parts: &Parts) -> Action {
    let has = |word: &str| address::query(parts.uri.query(), word).is_some();
    match parts.method {
        Method::GET | Method::HEAD if has("archive") => Action::Archive,
        Method::GET | Method::HEAD => Action::Download,
        Method::PUT if has("archive") => Action::UploadArchive,
        Method::PUT => Action::Upload,
        Method::POST if has("directory") => Action::MakeDirectory,
        Method::POST => Action::UploadForm,
        Method::DELETE => Action::Delete,
        _ => Action::Other,
    }
}

impl FileServer {
    async fn target(&self, principal: &Principal, parts: &Parts) -> Result<Target, Failure> {
        let mut target = self.sandbox(principal, parts.uri.path(), &parts.method).await?;
        (_, target.path) = address::of_file(parts.uri.path())?;
        Ok(target)
    }

    async fn act(
        &self,
        action: Action,
        target: Target,
        parts: &Parts,
        intake: &mut Intake,
    ) -> (Option<Target>, Answer) {
        let format = address::query(parts.uri.query(), "archive").unwrap_or_default();
        let done = match action {
            Action::Download => download::file_or_listing(&target, parts).await,
            Action::Archive => archive::get(&target, format, parts, &self.zips).await,
            Action::Upload => upload::put(self, &target, &parts.headers, intake).await,
            Action::UploadForm => upload::post(self, &target, &parts.headers, intake).await,
            Action::UploadArchive => upload::put_archive(self, &target, &parts.headers, format, intake).await,
            Action::MakeDirectory => upload::make_directory(&target).await,
            Action::Delete => upload::remove(&target).await,
            Action::UploadBegun
            | Action::UploadPart
            | Action::UploadAsked
            | Action::UploadGivenUp
            | Action::Link
            | Action::Other => Err(Failure::MethodNotAllowed),
        };
        (Some(target), done)
    }
}
