//! A server from settings, the same for every transport.

use std::fmt;
use std::sync::Arc;

use sandbox::{Result, SandboxService};
use tools::{Catalog, Exporter, HostFiles, ImageSource, Links, Policy, ProfileName, Selection};

use super::adapter::{Adapter, Callers, Parts};
use crate::api::session::SignIn;
use crate::api::{self, Desk, Offered};
use crate::audit::Recorder;
use crate::config::{CodeRunnerConfig, Config, EngineChoice};
use crate::http::body::Bodies;
use crate::http::drain::Drain;
use crate::previews::{Place, Previews};
use crate::transfer::roots::Roots;
use crate::wiring::{self, Outlet, Served};
use crate::{embedded, packages, profiles};

/// An engine with its service, and those who speak for it. Whoever has it shuts it down.
pub struct Server {
    outlet: Outlet,
    service: SandboxService,
    images: Option<Arc<dyn ImageSource>>,
    places: packages::Images,
    callers: Callers,
    recorder: Recorder,
    links: Option<Arc<dyn Links>>,
    previews: Arc<Previews>,
    voices: Vec<Spoken>,
    desk: Option<(Desk, SignIn, Bodies)>,
}

/// Where previews are, and when they end with the server.
#[derive(Clone, Debug)]
pub struct Shows {
    pub place: Place,
    pub drain: Drain,
}

impl Server {
    /// With what speaks as `config` says. Before anything is started that is put together: a tool that is not there must
    /// not cost an engine.
    pub async fn start(
        config: &Config,
        outlet: &Outlet,
        callers: Callers,
        recorder: Recorder,
        links: Option<Arc<dyn Links>>,
        previews: Shows,
    ) -> Result<(Self, Adapter)> {
        let voice = Voice::new(config, outlet)?;
        let Served { service, images, places } = wiring::server_service(config, outlet).await?;
        let (outlet, voices) = (outlet.clone(), Vec::new());
        let Shows { place, drain } = previews;
        let previews = Arc::new(Previews::new(service.clone(), outlet.gateway.clone(), place, drain));
        previews.prepare().await?;
        let mut server =
            Self { outlet, service, images, places, callers, recorder, links, previews, voices, desk: None };
        let adapter = server.add(config, voice)?;
        Ok((server, adapter))
    }

    /// What all of them speak for.
    pub fn service(&self) -> &SandboxService {
        &self.service
    }

    /// One more that speaks for the same sandboxes, with these settings.
    pub fn speak_as(&mut self, config: &Config) -> Result<Adapter> {
        let voice = Voice::new(config, &self.outlet)?;
        self.add(config, voice)
    }

    /// The same with other settings: `config` is that of the first one, from which those of the others follow. All of them
    /// change, or none.
    pub fn reload(&self, config: &Config) -> Result<()> {
        let mut changed = Vec::new();
        for Spoken { profile, code_runner, adapter } in &self.voices {
            let mut config = match profile {
                Some(profile) if config.server.profile != Some(*profile) => config.as_profile(*profile)?,
                Some(_) | None => config.clone(),
            };
            config.code_runner.clone_from(code_runner);
            changed.push((adapter, self.parts(&config, Voice::new(&config, &self.outlet)?)?));
        }
        if let Some((desk, sign_in, bodies)) = &self.desk {
            desk.replace(self.desk_parts(config, *sign_in, bodies.clone())?);
        }
        changed.into_iter().for_each(|(adapter, parts)| adapter.replace(parts));
        Ok(())
    }

    fn add(&mut self, config: &Config, voice: Voice) -> Result<Adapter> {
        let adapter = Adapter::new(self.parts(config, voice)?);
        let (profile, code_runner) = (config.server.profile, config.code_runner.clone());
        self.voices.push(Spoken { profile, code_runner, adapter: adapter.clone() });
        Ok(adapter)
    }

    fn parts(&self, config: &Config, voice: Voice) -> Result<Parts> {
        let Voice { policy, catalog, host_files } = voice;
        let policy = Arc::new(policy);
        let exporter: Option<Arc<dyn Exporter>> = match config.engine {
            EngineChoice::Native | EngineChoice::Docker | EngineChoice::Podman => {
                embedded::exporter(&self.service, config, &policy, self.places.clone())?
            }
            EngineChoice::Kubernetes => None,
        };
        Ok(Parts {
            service: self.service.clone(),
            catalog,
            policy,
            host_files,
            images: self.images.clone(),
            exporter,
            links: self.links.clone(),
            previews: Some(self.previews.clone()),
            callers: self.callers,
            recorder: self.recorder.clone(),
        })
    }

    /// The dashboard's API, with the same sandboxes and within the same bounds.
    pub fn desk(&mut self, config: &Config, sign_in: SignIn, bodies: Bodies) -> Result<Desk> {
        let desk = Desk::new(self.desk_parts(config, sign_in, bodies.clone())?);
        self.desk = Some((desk.clone(), sign_in, bodies));
        Ok(desk)
    }

    fn desk_parts(&self, config: &Config, sign_in: SignIn, bodies: Bodies) -> Result<api::Parts> {
        let policy = policy(config, &self.outlet)?;
        let selection = &config.server.selection;
        let catalog = match config.server.profile {
            None => Some(Catalog::new(&policy, selection)?),
            Some(_) if *selection == Selection::default() => Some(Catalog::new(&policy, selection)?),
            Some(_) => None,
        };
        Ok(api::Parts {
            service: self.service.clone(),
            offered: Offered::by(catalog.as_ref(), config.server.profile),
            policy: Arc::new(policy),
            images: self.images.clone(),
            recorder: self.recorder.clone(),
            trail: config.server.audit_log.clone(),
            sign_in,
            profile: config.server.profile,
            bodies,
        })
    }

    /// Ends tasks and sandboxes. No request is served well after this.
    pub async fn shut_down(&self) -> Result<()> {
        self.voices.iter().for_each(|voice| voice.adapter.end_tasks());
        self.service.shutdown().await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("voices", &self.voices).finish_non_exhaustive()
    }
}

/// What speaks, and what of it never changes.
#[derive(Debug)]
struct Spoken {
    profile: Option<ProfileName>,
    code_runner: CodeRunnerConfig,
    adapter: Adapter,
}

/// How one server speaks: its tools, and what they may do.
struct Voice {
    policy: Policy,
    catalog: Catalog,
    host_files: Option<Arc<dyn HostFiles>>,
}

impl Voice {
    fn new(config: &Config, outlet: &Outlet) -> Result<Self> {
        let policy = policy(config, outlet)?;
        for secret in policy.secrets.iter().filter(|secret| !secret.is_within(&policy.ceiling.network)) {
            tracing::warn!(secret = %secret.name, "no sandbox can use this secret: its hosts are beyond max_network");
        }
        let catalog = catalog(config, &policy)?;
        let host_files: Option<Arc<dyn HostFiles>> = match config.server.opened.as_slice() {
            [] => None,
            opened => Some(Arc::new(Roots::open(opened)?)),
        };
        Ok(Self { policy, catalog, host_files })
    }
}

fn policy(config: &Config, outlet: &Outlet) -> Result<Policy> {
    Ok(Policy { secrets: outlet.secrets(config)?, ..wiring::policy(config)? })
}

/// The tools that a client sees: ours, or those of an older server.
pub fn catalog(config: &Config, policy: &Policy) -> Result<Catalog> {
    match config.server.profile {
        Some(name) => Catalog::of_profile(profiles::profile(name, config)?, policy, &config.server.selection),
        None => Catalog::new(policy, &config.server.selection),
    }
}
