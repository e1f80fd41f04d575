//! What the operator allows and what a call gets that does not ask.

use std::time::Duration;

use sandbox::{
    ByteSize, Environment, Error, HostRule, Image, Lifetime, Limits, Network, Owner, Quota, Result, Role, Runners,
    SandboxSpec, SecretName,
};

use crate::image::ImagePattern;
use crate::network::NetworkArgument;

/// Decided once, when the server starts.
#[derive(Clone, Debug)]
pub struct Policy {
    pub image: Image,
    /// Those that may be asked for besides it.
    pub images: Vec<ImagePattern>,
    /// Whether packages may be asked for.
    pub packages: bool,
    pub limits: Limits,
    pub ceiling: Ceiling,
    /// What a sandbox reaches that does not ask.
    pub network: Network,
    /// Whom programs are.
    pub role: Role,
    /// Given to every sandbox whose network reaches a host of theirs.
    pub secrets: Vec<Secret>,
    pub lifetime: Lifetime,
    /// The same where nobody asked to keep a sandbox: it may be unused for so long at most.
    pub longest_unused: Duration,
    pub environment: Environment,
    /// The names of those of its variables that come from the server's own environment.
    pub passed_through: Vec<String>,
    /// For a run that names no time-out.
    pub timeout: Duration,
    pub longest_timeout: Duration,
    /// How long a call waits for its run before it is answered with a job.
    pub wait: Duration,
    /// The names of the languages that code can be in.
    pub languages: Vec<String>,
    /// Places of the host that files may be copied from and to, as the operator named them.
    pub roots: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            image: Image::Host,
            images: Vec::new(),
            packages: false,
            limits: Limits::default(),
            ceiling: Ceiling::default(),
            network: Network::None,
            role: Role::Guest,
            secrets: Vec::new(),
            lifetime: Lifetime::default(),
            longest_unused: Quota::default().idle_lifetime,
            environment: Environment::default(),
            passed_through: Vec::new(),
            timeout: Duration::from_secs(30),
            longest_timeout: Duration::from_secs(30 * 60),
            // Many clients give up after a minute, and an answer must reach them before that.
            wait: Duration::from_secs(50),
            languages: Runners::built_in().iter().map(|runner| runner.name.clone()).collect(),
            roots: Vec::new(),
        }
    }
}

/// What a call wants of a new sandbox; what it leaves out is as the operator set it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    pub image: Option<&'a str>,
    pub network: Option<&'a NetworkArgument>,
}

/// What may be known of a secret: never its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    pub name: SecretName,
    pub hosts: Vec<HostRule>,
}

impl Secret {
    /// Whether a sandbox with this network can use it.
    pub fn is_within(&self, network: &Network) -> bool {
        self.hosts.iter().any(|host| network.reaches(host))
    }
}

/// The most that a model may ask for, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    pub cpu_millis: u32,
    pub memory: ByteSize,
    pub processes: u32,
    pub disk: ByteSize,
    pub network: Network,
}

impl Default for Ceiling {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cpu_millis: u32::try_from(processors * 1000).unwrap_or(u32::MAX),
            memory: ByteSize::mebibytes(4 * 1024),
            processes: 1024,
            disk: ByteSize::mebibytes(8 * 1024),
            network: Network::None,
        }
    }
}

impl Ceiling {
    /// Refuses rather than cuts: a model that asked for more must know that it did not get it.
    pub fn admit(&self, limits: Limits) -> Result<Limits> {
        let at_most = |what: &str, asked: u64, most: u64, shown: String| {
            if asked <= most {
                return Ok(());
            }
            Err(Error::limit_exceeded(format!("that is more {what} than this server gives"))
                .with_hint(format!("ask for at most {shown}")))
        };
        let Self { cpu_millis, memory, processes, disk, network: _ } = *self;
        at_most(
            "processor time",
            limits.cpu_millis.into(),
            cpu_millis.into(),
            format!("{} cpus", f64::from(cpu_millis) / 1000.0),
        )?;
        at_most("memory", limits.memory.bytes(), memory.bytes(), format!("{} memory_mb", memory.bytes() >> 20))?;
        at_most("processes", limits.processes.into(), processes.into(), format!("{processes} processes"))?;
        at_most("disk", limits.disk.bytes(), disk.bytes(), format!("{} disk_mb", disk.bytes() >> 20))?;
        limits.check()
    }
}

impl Policy {
    /// A sandbox of this policy.
    pub fn spec(&self, owner: &Owner, asked: Asked<'_>) -> Result<SandboxSpec> {
        let network = match asked.network {
            Some(asked) => self.ceiling.network.admit(asked.parse()?)?,
            None => self.network.clone(),
        };
        let within = self.secrets.iter().filter(|secret| secret.is_within(&network));
        Ok(SandboxSpec {
            image: self.image(asked.image)?,
            limits: self.limits,
            secrets: within.map(|secret| secret.name.clone()).collect(),
            network,
            lifetime: self.lifetime,
            environment: self.environment.clone(),
            role: self.role,
            ..SandboxSpec::new(owner.clone())
        })
    }

    /// Whether a call can lead beyond the sandboxes: to hosts, to a registry for its image, or to an index for packages.
    pub fn reaches_out(&self) -> bool {
        !self.ceiling.network.is_none() || !self.images.is_empty() || self.packages
    }

    pub fn timeout(&self, seconds: Option<f64>) -> Result<Duration> {
        let Some(seconds) = seconds else { return Ok(self.timeout) };
        let longest = self.longest_timeout.as_secs();
        if seconds.is_nan() || seconds <= 0.0 {
            return Err(Error::invalid_input("timeout_s must be more than 0"));
        }
        match Duration::try_from_secs_f64(seconds) {
            Ok(timeout) if timeout <= self.longest_timeout => Ok(timeout),
            Ok(_) | Err(_) => Err(Error::limit_exceeded(format!("timeout_s can be {longest} at most"))
                .with_hint("split the work, or save what it has done and go on in a second run")),
        }
    }

    /// How long a call waits for its run before it is answered with a job.
    pub fn wait(&self, seconds: Option<f64>) -> Result<Duration> {
        let Some(seconds) = seconds else { return Ok(self.wait) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(wait) => Ok(wait.min(self.longest_timeout)),
            Err(_) => Err(Error::invalid_input("wait_s must be a number of seconds, 0 or more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_ceiling_is_refused_by_name() {
        let policy = Policy::default();
        let limits = Limits { memory: ByteSize::mebibytes(4097), ..Limits::default() };
        let error = policy.ceiling.admit(limits).unwrap_err();
        assert_eq!(error.hint(), Some("ask for at most 4096 memory_mb"));
        assert!(policy.ceiling.admit(Limits::default()).is_ok());
    }

    #[test]
    fn a_secret_goes_to_sandboxes_that_can_use_it() {
        let secret = |name: &str, host: &str| Secret {
            name: name.parse().unwrap(),
            hosts: vec!["other.example".parse().unwrap(), host.parse().unwrap()],
        };
        let policy = Policy {
            network: "api.example.com".parse().unwrap(),
            ceiling: Ceiling { network: Network::Internet, ..Ceiling::default() },
            secrets: vec![secret("ONE", "*.example.com"), secret("TWO", "api.example.net")],
            ..Policy::default()
        };
        let given = |asked: Option<&str>| {
            let asked = asked.map(|text| NetworkArgument::Text(text.to_owned()));
            let asked = Asked { network: asked.as_ref(), ..Asked::default() };
            let secrets = policy.spec(&Owner::local(), asked).unwrap().secrets;
            secrets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(given(None), "ONE");
        assert_eq!(given(Some("none")), "");
        assert_eq!(given(Some("api.example.net")), "TWO");
        assert_eq!(given(Some("internet")), "ONE TWO");
    }

    #[test]
    fn times_that_are_no_times_are_refused() {
        let policy = Policy::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1801.0] {
            assert!(policy.timeout(Some(seconds)).is_err(), "{seconds} was taken");
        }
        assert_eq!(policy.timeout(Some(0.5)).unwrap(), Duration::from_millis(500));
        assert_eq!(policy.timeout(None).unwrap(), policy.timeout);
    }
}
