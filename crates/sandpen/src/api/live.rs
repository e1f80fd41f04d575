//! `/api/live`: the sandboxes and the runs of a caller, again and again, as they change.

use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use futures_util::stream;
use sandbox::{Event, Owner};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::answers::{Answered, need, told};
use super::sandboxes::{self, Whose};
use super::stream::{Told, response};
use super::{Desk, runs, shapes};
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::drain::Drain;
use crate::http::places::Place;

/// Between two looks when nothing happens: what sandboxes use changes all the time.
const USUAL: Duration = Duration::from_secs(2);

/// Between two looks when much happens.
const SOONEST: Duration = Duration::from_millis(250);

pub async fn follow(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Extension(drain): Extension<Drain>,
    Query(whose): Query<Whose>,
) -> Answered {
    need(&principal, if whose.all { Scope::Admin } else { Scope::Read })?;
    let place = desk.shared.streams.take(&principal.owner)?;
    desk.take_interest();
    let events = desk.service().subscribe();
    let watch = Watch { desk, principal, whose, events: Some(events), last: None, _place: place };
    let looks = stream::unfold(watch, async |mut watch| {
        watch.wait().await;
        Some((watch.look().await, watch))
    });
    Ok(response(Box::pin(looks), async move { drain.over().cancelled().await }))
}

struct Watch {
    desk: Desk,
    principal: Principal,
    whose: Whose,
    /// None once there will be no more.
    events: Option<Receiver<Event>>,
    last: Option<Instant>,
    _place: Place,
}

impl Watch {
    /// Until there may be something new. The first time there is.
    async fn wait(&mut self) {
        if let Some(last) = self.last {
            let owner = (!self.whose.all).then_some(&self.principal.owner);
            tokio::select! {
                () = sleep_until(last + USUAL) => {}
                () = something(&mut self.events, owner) => sleep_until(last + SOONEST).await,
            }
        }
        self.last = Some(Instant::now());
    }

    async fn look(&self) -> Told {
        let Self { desk, principal, whose, .. } = self;
        let runs: Vec<_> = runs::of(desk, principal).iter().map(shapes::run).collect();
        match sandboxes::seen(desk, principal, *whose).await {
            Ok(sandboxes) => ("state", json!({ "at_ms": shapes::now_ms(), "sandboxes": sandboxes, "runs": runs })),
            Err(error) => ("trouble", Value::from_iter([("error", told(&error))])),
        }
    }
}

/// Until something happens to a sandbox of this owner, or of anybody.
async fn something(events: &mut Option<Receiver<Event>>, owner: Option<&Owner>) {
    while let Some(receiver) = events {
        match receiver.recv().await {
            Ok(event) if owner.is_none_or(|owner| event.owner == *owner) => return,
            Ok(_) => {}
            // Among those that were missed there may have been one.
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => *events = None,
        }
    }
    std::future::pending().await
}
