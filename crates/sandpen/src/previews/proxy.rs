//! From a request at the listener of previews to the server inside, and back.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Method, StatusCode, Uri, Version};
use hyper::body::Incoming;
use sandbox::ErrorKind;
use tokio::sync::OwnedSemaphorePermit;

use super::headers::{self, Page, Place};
use super::page;
use super::stream::{Answered, Sent, carry};
use super::table::{Name, Shown, Table};
use super::upstream::{self, Failure};
use crate::http::drain::Drain;
use crate::http::framing::Switch;
use crate::http::listener::Peer;

#[derive(Clone)]
struct Serving {
    table: Arc<Table>,
    drain: Drain,
}

/// There is one route, which leads to whatever the name of the host says.
pub fn routes(table: Arc<Table>, drain: Drain) -> Router {
    Router::new().fallback(serve).with_state(Serving { table, drain })
}

async fn serve(State(Serving { table, drain }): State<Serving>, request: Request) -> Response {
    let Some(name) = name(&table, &request) else { return page::unknown() };
    let Some(shown) = table.find(&name) else { return page::unknown() };
    let place = Place { base: &table.base, name: &name, port: shown.port };
    // A page of the same owner's other program may ask this one, if that allows it.
    let port_of = |other: &Name| table.find(other).filter(|other| other.owner == shown.owner).map(|other| other.port);
    let Ok(asking) = place.page(request.method(), request.headers(), port_of) else { return page::foreign() };
    if request.method() == Method::CONNECT {
        return page::plain(StatusCode::METHOD_NOT_ALLOWED, "This method is not for this address.");
    }
    let Ok(slot) = Arc::clone(&shown.places).try_acquire_owned() else { return page::busy() };
    let passage = Passage { table: &table, shown: &shown, place, asking };
    passage.serve(request, slot, drain).await
}

/// Of the one host that the request is for: said once, and not in two ways.
fn name(table: &Table, request: &Request) -> Option<Name> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return None };
    let name = table.base.name_in(host.to_str().ok()?)?;
    let is_same = |authority: &http::uri::Authority| table.base.name_in(authority.as_str()).as_ref() == Some(&name);
    request.uri().authority().is_none_or(is_same).then_some(name)
}

struct Passage<'a> {
    table: &'a Arc<Table>,
    shown: &'a Arc<Shown>,
    place: Place<'a>,
    asking: Option<Page>,
}

impl Passage<'_> {
    async fn serve(self, mut request: Request, slot: OwnedSemaphorePermit, drain: Drain) -> Response {
        let upgrade = headers::upgrade(request.headers()).cloned();
        let client = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let switch = request.extensions().get::<Switch>().cloned();
        let Some(inward) = self.inward(request) else { return page::unknown() };
        let mut answer = match upstream::ask(self.table, self.shown, inward).await {
            Ok(answer) => answer,
            Err(failure) => return self.failed(failure),
        };
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.outward(answer, slot);
        }
        let (Some(client), Some(switch), Some(agreed)) = (client, switch, answer.headers().get(UPGRADE).cloned())
        else {
            return page::broken();
        };
        let server = hyper::upgrade::on(&mut answer);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = self.place.response(answer.headers(), self.asking.as_ref());
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(UPGRADE, agreed);
        switch.leave_http();
        tokio::spawn(carry(client, server, self.shown.over.clone(), drain, slot));
        response
    }

    fn inward(&self, request: Request) -> Option<http::Request<Body>> {
        let peer = request.extensions().get::<Peer>().map(|Peer(address)| IpAddr::to_canonical(&address.ip()));
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut inward = http::Request::new(Sent::wrap(body));
        *inward.method_mut() = parts.method;
        *inward.uri_mut() = path.parse::<Uri>().ok()?;
        *inward.version_mut() = Version::HTTP_11;
        *inward.headers_mut() = self.place.request(&parts.headers, self.asking.as_ref(), peer);
        Some(inward)
    }

    fn outward(&self, answer: http::Response<Incoming>, slot: OwnedSemaphorePermit) -> Response {
        let (parts, body) = answer.into_parts();
        let mut response = Response::new(Answered::wrap(body, self.shown.over.clone(), slot));
        *response.status_mut() = parts.status;
        *response.headers_mut() = self.place.response(&parts.headers, self.asking.as_ref());
        response
    }

    fn failed(&self, failure: Failure) -> Response {
        match failure {
            Failure::Unreachable(error) => {
                tracing::debug!(sandbox = %self.shown.sandbox, ?error, "a preview does not reach its server");
                if error.kind() == ErrorKind::NotFound {
                    self.table.end(self.shown);
                }
                page::unreachable(&error)
            }
            Failure::Late => page::late(),
            Failure::Broken(error) => {
                tracing::debug!(sandbox = %self.shown.sandbox, %error, "the server of a preview broke off");
                page::broken()
            }
        }
    }
}
