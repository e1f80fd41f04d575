//! The measurements as a table for people, as Markdown for a document, and as JSON for programs.

use sandbox::{ByteSize, Error};
use serde::{Serialize, Serializer};

use super::network::Figures;
use super::preview;
use super::row::{Row, Work};
use super::sample::Sample;
use super::scale::{Alive, Scale};
use super::trees::Trees;
use crate::output::{BOLD, DIM};
use crate::table::{Align, Cell, Table};

#[derive(Debug, Serialize)]
pub struct Report {
    version: &'static str,
    kernel: String,
    cpus: usize,
    runs: u32,
    #[serde(serialize_with = "rows_as_objects")]
    pub rows: Vec<(Row, Sample)>,
    pub skipped: Vec<Skipped>,
    pub scale: Scale,
    pub network: Figures,
    pub preview: preview::Figures,
    pub trees: Trees,
}

#[derive(Debug, Serialize)]
pub struct Skipped {
    name: &'static str,
    reason: String,
}

impl Skipped {
    pub fn new(name: &'static str, error: &Error) -> Self {
        Self { name, reason: error.message().to_owned() }
    }
}

#[derive(Serialize)]
struct RowObject {
    name: &'static str,
    what: &'static str,
    median_ms: f64,
    p10_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    times_bare: Option<f64>,
    times_bubblewrap: Option<f64>,
}

impl Report {
    pub fn new(runs: u32) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            runs,
            rows: Vec::new(),
            skipped: Vec::new(),
            scale: Scale::default(),
            network: Figures::default(),
            preview: preview::Figures::default(),
            trees: Trees::default(),
        }
    }

    pub fn render(&self) -> String {
        let mut table = Table::new(&[
            ("ROW", Align::Left),
            ("MEDIAN ms", Align::Right),
            ("P10", Align::Right),
            ("P90", Align::Right),
            ("P99", Align::Right),
            ("× BARE", Align::Right),
            ("× BWRAP", Align::Right),
            ("WHAT", Align::Left),
        ]);
        let number = |value: f64| Cell::from(format!("{value:.2}"));
        let ratio =
            |value: Option<f64>| value.map_or_else(|| Cell::styled("–", DIM), |value| format!("{value:.2}").into());
        for row in objects(&self.rows) {
            table.push([
                row.name.into(),
                number(row.median_ms),
                number(row.p10_ms),
                number(row.p90_ms),
                number(row.p99_ms),
                ratio(row.times_bare),
                ratio(row.times_bubblewrap),
                Cell::styled(row.what, DIM),
            ]);
        }
        let mut text = if self.rows.is_empty() { String::new() } else { table.render() };
        for (what, value) in self.sections().into_iter().flat_map(|(_, lines)| lines) {
            text += &format!("{BOLD}{what}:{BOLD:#} {value}\n");
        }
        for Skipped { name, reason } in &self.skipped {
            text += &format!("{DIM}{name} was skipped: {reason}{DIM:#}\n");
        }
        text + &format!("{DIM}{}{DIM:#}\n", self.conditions())
    }

    pub fn markdown(&self) -> String {
        let ratio = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        let mut text = String::from(
            "| Row | What | Median ms | p10 | p90 | p99 | × bare | × bubblewrap |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for row in objects(&self.rows) {
            text += &format!(
                "| `{}` | {} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {} |\n",
                row.name,
                row.what,
                row.median_ms,
                row.p10_ms,
                row.p90_ms,
                row.p99_ms,
                ratio(row.times_bare),
                ratio(row.times_bubblewrap)
            );
        }
        for (title, lines) in self.sections().into_iter().filter(|(_, lines)| !lines.is_empty()) {
            text += &format!("\n| {title} | |\n| --- | ---: |\n");
            for (what, value) in lines {
                text += &format!("| {what} | {value} |\n");
            }
        }
        for Skipped { name, reason } in &self.skipped {
            text += &format!("\n`{name}` was skipped: {reason}.\n");
        }
        text + &format!("\n{}\n", self.conditions())
    }

    fn conditions(&self) -> String {
        format!(
            "sandpen {}, kernel {}, {} processors, {} interleaved runs per row",
            self.version, self.kernel, self.cpus, self.runs
        )
    }

    fn sections(&self) -> [(&'static str, Lines); 4] {
        [
            ("Many sandboxes", self.scale_lines()),
            ("Out of a sandbox", self.network_lines()),
            ("Into a sandbox", self.preview_lines()),
            ("Whole trees", self.tree_lines()),
        ]
    }

    fn scale_lines(&self) -> Lines {
        let Scale { alive, runs_per_second } = &self.scale;
        let mut lines = Vec::new();
        for Alive { count, create_ms, made_per_second, memory_bytes } in alive {
            let beside = if *count == 0 { "no other sandbox".to_owned() } else { format!("{count} others alive") };
            lines.push((format!("creation, {beside}"), format!("{create_ms:.2} ms")));
            if let (Some(bytes), Some(rate)) = (memory_bytes, made_per_second) {
                let each = format!("{} each, made at {rate:.0} a second", ByteSize::new(*bytes));
                lines.push((format!("{count} idle sandboxes"), each));
            }
        }
        if let Some(rate) = runs_per_second {
            lines.push(("create, run, destroy with 2 workers".to_owned(), format!("{rate:.0} a second")));
        }
        lines
    }

    fn network_lines(&self) -> Lines {
        let Figures {
            stream_bytes_per_second,
            stream_times_loopback,
            streams,
            streams_bytes_per_second,
            streams_times_loopback,
            connections,
            connections_ms,
            memory_per_connection_bytes,
        } = &self.network;
        let flow =
            |rate: f64, ratio: f64| format!("{:.2} GiB a second, {ratio:.2} × loopback", rate / f64::from(1 << 30));
        let mut lines = Vec::new();
        if let (Some(rate), Some(ratio)) = (stream_bytes_per_second, stream_times_loopback) {
            lines.push(("one stream".to_owned(), flow(*rate, *ratio)));
        }
        if let (Some(count), Some(rate), Some(ratio)) = (streams, streams_bytes_per_second, streams_times_loopback) {
            lines.push((format!("{count} streams"), flow(*rate, *ratio)));
        }
        if let (Some(count), Some(took), Some(bytes)) = (connections, connections_ms, memory_per_connection_bytes) {
            let bytes = ByteSize::new(*bytes);
            lines.push((format!("{count} connections at once, each answered"), format!("{took:.0} ms, {bytes} each")));
        }
        lines
    }

    fn preview_lines(&self) -> Lines {
        let preview::Figures { preview_bytes_per_second, preview_times_loopback } = &self.preview;
        let (Some(rate), Some(ratio)) = (preview_bytes_per_second, preview_times_loopback) else { return Vec::new() };
        let flow = format!("{:.2} GiB a second, {ratio:.2} × loopback", rate / f64::from(1 << 30));
        vec![("a download of 1 GiB through a preview".to_owned(), flow)]
    }

    fn tree_lines(&self) -> Lines {
        let Trees { start_host_ms, start_layers_ms, layers, fork_empty_ms, fork_tree_ms, save_small_ms, save_large_ms } =
            &self.trees;
        let beside = |much: f64, little: f64| format!("{much:.2} ms, {:.2} × {little:.2} ms", much / little);
        let mut lines = Vec::new();
        if let (Some(host), Some(image), Some(count)) = (start_host_ms, start_layers_ms, layers) {
            lines.push((
                format!("start from an image of {count} layers, beside the host's tree"),
                beside(*image, *host),
            ));
        }
        if let (Some(empty), Some(tree)) = (fork_empty_ms, fork_tree_ms) {
            lines.push(("fork with 1 GiB written, beside an empty one".to_owned(), beside(*tree, *empty)));
        }
        if let (Some(small), Some(large)) = (save_small_ms, save_large_ms) {
            lines.push(("save 10 MB on an image of 1 GiB, beside a small one".to_owned(), beside(*large, *small)));
        }
        lines
    }
}

/// What, and how much of it.
type Lines = Vec<(String, String)>;

fn objects(rows: &[(Row, Sample)]) -> Vec<RowObject> {
    let median = |wanted: Row| rows.iter().find(|(row, _)| *row == wanted).map(|(_, sample)| sample.median);
    rows.iter()
        .map(|(row, sample)| {
            let (bare, bubblewrap) = match row.work() {
                Work::Python => (median(Row::BarePython), median(Row::BubblewrapPython)),
                Work::Node => (median(Row::BareNode), None),
                Work::Data => (median(Row::BareData), None),
                Work::True => (median(Row::BareTrue), median(Row::BubblewrapTrue)),
                Work::Alone => (None, None),
            };
            RowObject {
                name: row.name(),
                what: row.what(),
                median_ms: sample.median,
                p10_ms: sample.p10,
                p90_ms: sample.p90,
                p99_ms: sample.p99,
                times_bare: bare.map(|bare| sample.median / bare),
                times_bubblewrap: bubblewrap.map(|bubblewrap| sample.median / bubblewrap),
            }
        })
        .collect()
}

fn rows_as_objects<S: Serializer>(rows: &[(Row, Sample)], serializer: S) -> Result<S::Ok, S::Error> {
    objects(rows).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let sample = |median| Sample { median, p10: median / 2.0, p90: median * 2.0, p99: median * 3.0 };
        Report {
            rows: vec![
                (Row::BarePython, sample(10.0)),
                (Row::SandboxPython, sample(12.5)),
                (Row::BubblewrapPython, sample(20.0)),
                (Row::Create, sample(4.0)),
            ],
            skipped: vec![Skipped { name: "crun-python", reason: "crun is not installed".into() }],
            scale: Scale { runs_per_second: Some(250.4), ..Scale::default() },
            kernel: "6.18".into(),
            cpus: 2,
            ..Report::new(100)
        }
    }

    #[test]
    fn ratios_are_within_the_same_work() {
        let value = serde_json::to_value(report()).unwrap();
        assert_eq!(value["rows"][1]["times_bare"], 1.25);
        assert_eq!(value["rows"][1]["times_bubblewrap"], 0.625);
        assert_eq!(value["rows"][3]["times_bare"], serde_json::Value::Null);
        assert_eq!(value["skipped"][0]["reason"], "crun is not installed");
    }

    #[test]
    fn markdown_has_a_line_per_row() {
        let text = report().markdown();
        assert!(text.contains("| 12.50 | 6.25 | 25.00 | 37.50 | 1.25 | 0.62 |\n"), "{text}");
        assert!(text.contains("| create, run, destroy with 2 workers | 250 a second |\n"), "{text}");
        assert!(text.contains("`crun-python` was skipped: crun is not installed.\n"), "{text}");
    }
}
