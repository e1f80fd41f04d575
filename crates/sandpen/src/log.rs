//! What servers tell of themselves, on standard error and nowhere else; and the traces of what they do, where somebody collects
//! them.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use sandbox::{Result, SPANS};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, LogLevel, ServerConfig};
use crate::{mcp, trace};

/// Once, by the command that serves. A second call changes nothing.
pub fn start(config: &ServerConfig) -> Result<Option<trace::Prepared>> {
    let (spans, prepared) = trace::prepare()?.unzip();
    let spans = spans.map(|spans| spans.with_filter(Targets::new().with_target(SPANS, LevelFilter::INFO)));
    let _ = tracing_subscriber::registry().with(spans).with(lines(config)).try_init();
    std::panic::set_hook(Box::new(tell_fault));
    Ok(prepared)
}

/// A fault of ours is a line like any other. Its words are told only where they are the program's own: what was put together at the
/// time may have something of a caller in it, or of this machine.
fn tell_fault(fault: &PanicHookInfo<'_>) {
    let place = fault.location().map(|place| format!("{}:{}", place.file(), place.line()));
    let words = fault.payload().downcast_ref::<&'static str>();
    let way = Backtrace::capture();
    let way = (way.status() == BacktraceStatus::Captured).then(|| way.to_string());
    tracing::error!(place, words, way, "the program came upon a fault of its own");
}

fn lines<S>(config: &ServerConfig) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let level = config.log;
    let filter = Targets::new()
        .with_default(filter(level))
        .with_target(SPANS, LevelFilter::OFF)
        .with_target(mcp::LIBRARY, library(level))
        .with_target(format!("{}::service", mcp::LIBRARY), undelivered(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    match config.log_format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).with_filter(filter).boxed()
        }
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// The MCP library writes whole requests and results, which are the client's; only who asks for everything gets them.
fn library(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error | LogLevel::Warn | LogLevel::Info | LogLevel::Debug => LevelFilter::ERROR,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// To it, an answer to a client that went away is an error; to us that is the client's right.
fn undelivered(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off | LogLevel::Error | LogLevel::Warn | LogLevel::Info | LogLevel::Debug => LevelFilter::OFF,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
