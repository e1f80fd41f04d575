//! Images that are a daemon's own: seen and fetched through it. Everything else about them is for its own client.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine_docker::{Daemon, DaemonImage, Flavour, PullProgress, PullWatcher};
use sandbox::{ByteSize, ImageName, InstanceId, Result};
use serde::Serialize;

use super::asked::{List, Pull};
use super::progress::Bar;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, DIM};
use crate::pulls::Tally;
use crate::signals::Signals;
use crate::table::{Align, Cell, Table};
use crate::{time, wiring};

#[derive(Serialize)]
struct Images {
    images: Vec<ImageObject>,
}

#[derive(Serialize)]
struct ImageObject {
    image: String,
    id: String,
    created_at: String,
    bytes: u64,
}

pub fn list(arguments: &List, config: &Config, flavour: Flavour) -> Result<Exit> {
    let images = wiring::block_on(async { Daemon::connect(flavour, &wiring::wish(config)).await?.catalogue().await })?;
    if config.json {
        output::object(&Images { images: images.iter().map(ImageObject::from).collect() });
    } else if arguments.quiet {
        output::text(&images.iter().map(|image| format!("{}\n", image.name)).collect::<String>());
    } else if images.is_empty() {
        output::note("the daemon has no images", Some("fetch one with sandpen image pull"));
    } else {
        output::text(&table(&images));
    }
    Ok(Exit::SUCCESS)
}

/// As `docker pull`, with the logins of its client: one that is there is asked for again, because it may have changed.
pub fn pull(arguments: &Pull, config: &Config, flavour: Flavour) -> Result<Exit> {
    let name: ImageName = arguments.image.parse()?;
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        let pulling = async {
            let engine = wiring::docker_engine(config, flavour, InstanceId::random()?).await?;
            let shown = Shown::start(config.json);
            engine.pull(&name, &|said| shown.hear(&said)).await
        };
        let image = match signals.unless_ended(pulling).await {
            Ok(pulled) => pulled?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        if config.json {
            output::object(&ImageObject::from(&image));
        } else {
            output::text(&format!("pulled {} ({}, {})\n", image.name, image.id, ByteSize::new(image.bytes)));
        }
        Ok(Exit::SUCCESS)
    })
}

/// Shows images that come because a sandbox wants them.
#[derive(Clone, Copy, Debug)]
pub struct PullBars {
    pub json: bool,
}

impl PullWatcher for PullBars {
    fn begin(&self, _image: &str) -> Box<dyn Fn(PullProgress) + Send + Sync> {
        let shown = Shown::start(self.json);
        Box::new(move |said| shown.hear(&said))
    }
}

/// A bar, until this is dropped.
struct Shown {
    tally: Tally,
    _bar: Bar,
}

impl Shown {
    fn start(json: bool) -> Self {
        let bar = Bar::start(json);
        Self { tally: Tally::new(bar.progress()), _bar: bar }
    }

    fn hear(&self, said: &PullProgress) {
        self.tally.hear(said);
    }
}

impl From<&DaemonImage> for ImageObject {
    fn from(image: &DaemonImage) -> Self {
        Self {
            image: image.name.clone(),
            id: image.id.clone(),
            created_at: time::rfc3339(UNIX_EPOCH + Duration::from_secs(image.created)),
            bytes: image.bytes,
        }
    }
}

fn table(images: &[DaemonImage]) -> String {
    let columns = [("IMAGE", Align::Left), ("ID", Align::Left), ("SIZE", Align::Right), ("CREATED", Align::Left)];
    let mut table = Table::new(&columns);
    for image in images {
        let created = UNIX_EPOCH + Duration::from_secs(image.created);
        let age = SystemTime::now().duration_since(created).unwrap_or_default();
        let id: String = image.id.trim_start_matches("sha256:").chars().take(12).collect();
        table.push([
            image.name.clone().into(),
            Cell::styled(id, DIM),
            ByteSize::new(image.bytes).to_string().into(),
            format!("{} ago", time::short(Duration::from_secs(age.as_secs()))).into(),
        ]);
    }
    table.render()
}
