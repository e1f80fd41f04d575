//! Plays the hosts that secrets belong to, towards one sandbox.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use rustls::pki_types::CertificateDer;
use sandbox::{Denial, Host, Result};
use tokio_rustls::LazyConfigAcceptor;

use super::authority::ServerNames;
use super::first::{Replayed, Spoken, listen};
use super::keepsake::{Keepsake, Placeholder};
use super::passage::{Common, Passage};
use super::request::{Channel, Filling, Target};
use super::response::Masks;
use super::vault::Secret;
use crate::inspect::{Body, Dial, Exchange, Flow, Inspect, Later, Stream, Unreached};
use crate::record::Record;
use crate::rule::{Rule, Rules};

/// Whoever connects and waits for the other side to speak first does not speak HTTP.
const FIRST_BYTES: Duration = Duration::from_secs(20);

/// The secrets of one sandbox.
pub(crate) struct Inspector {
    secrets: Vec<(Arc<Secret>, Placeholder)>,
    keepsake: Keepsake,
    names: ServerNames,
    common: Arc<Common>,
}

impl Inspector {
    pub(super) fn new(
        secrets: Vec<Arc<Secret>>,
        keepsake: Keepsake,
        extra_roots: Vec<CertificateDer<'static>>,
        rules: &Rules,
    ) -> Self {
        let secrets: Vec<_> = secrets
            .into_iter()
            .filter_map(|secret| {
                let placeholder = keepsake.placeholders.get(secret.name())?.clone();
                Some((secret, placeholder))
            })
            .collect();
        let pairs = secrets.iter().map(|(secret, placeholder)| (&**secret, placeholder));
        let masks = if rules.stands(Rule::Masking) { Masks::new(pairs) } else { Masks::default() };
        let names = if rules.stands(Rule::ServerName) { ServerNames::OnlyTheHost } else { ServerNames::Any };
        Self { common: Arc::new(Common::new(masks, extra_roots)), secrets, keepsake, names }
    }

    async fn serve_flow(&self, flow: Flow) -> Result<(), Unreached> {
        let Flow { host, port, stream, dialer, record } = flow;
        let not_http = || Err(Unreached::Refused(Denial::NotHttp));
        let Ok(first) = tokio::time::timeout(FIRST_BYTES, listen(stream)).await else {
            return not_http();
        };
        let Ok((spoken, stream)) = first else {
            return Ok(());
        };
        let channel = match spoken {
            Spoken::Nothing => return Ok(()),
            Spoken::SomethingElse => return not_http(),
            Spoken::Http => Channel::Plain,
            Spoken::Tls => Channel::Encrypted,
        };
        let passage = self.passage(Target { host, port, channel }, dialer, record);
        match channel {
            Channel::Plain => passage.serve(stream).await,
            Channel::Encrypted => {
                if let Some(stream) = self.accept(stream, &passage).await {
                    passage.serve(stream).await;
                }
            }
        }
        Ok(())
    }

    /// The sandbox's side of an encrypted connection, or `None` when its greeting was refused.
    async fn accept(
        &self,
        stream: Replayed<Box<dyn Stream>>,
        passage: &Passage,
    ) -> Option<tokio_rustls::server::TlsStream<Replayed<Box<dyn Stream>>>> {
        let host = &passage.target.host;
        let server = match self.keepsake.authority.server(host, self.names) {
            Ok(server) => server,
            Err(error) => {
                tracing::warn!(%host, ?error, "no certificate for the host of a secret");
                return None;
            }
        };
        let handshake = async {
            let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
            let named = start.client_hello().server_name().and_then(|name| name.parse::<Host>().ok());
            if let Some(named) = named.filter(|named| named != host && self.names == ServerNames::OnlyTheHost) {
                passage.record.refuse_host(&named, Denial::HostNotAllowed);
            }
            start.into_stream(server).await
        };
        // A client that does not trust us or speaks HTTP/2 only has learned so from the handshake.
        tokio::time::timeout(FIRST_BYTES, handshake).await.ok()?.ok()
    }

    fn passage(&self, target: Target, dialer: Arc<dyn Dial>, record: Arc<Record>) -> Arc<Passage> {
        let belongs = |secret: &Secret| match target.channel {
            Channel::Encrypted => secret.belongs_to(&target.host, target.port),
            Channel::Plain => false,
        };
        let fitting = self.secrets.iter().filter(|(secret, _)| belongs(secret));
        let filling = Filling::new(fitting.map(|(secret, placeholder)| (&**secret, placeholder)));
        Passage::new(Arc::clone(&self.common), target, filling, dialer, record)
    }
}

impl Inspect for Inspector {
    fn wants(&self, host: &Host, port: u16) -> bool {
        self.secrets.iter().any(|(secret, _)| secret.may_come_from(host, port))
    }

    fn serve(&self, flow: Flow) -> Later<'_, Result<(), Unreached>> {
        Box::pin(self.serve_flow(flow))
    }

    fn exchange(&self, exchange: Exchange) -> Later<'_, Result<Response<Body>, Unreached>> {
        Box::pin(async move {
            let Exchange { host, port, request, dialer, record } = exchange;
            let passage = self.passage(Target { host, port, channel: Channel::Plain }, dialer, record);
            passage.exchange(request).await
        })
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inspector({:?})", self.keepsake)
    }
}

#[cfg(test)]
#[path = "inspector_tests.rs"]
mod tests;
