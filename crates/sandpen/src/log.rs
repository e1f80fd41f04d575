//! What servers tell of themselves, on standard error and nowhere else.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::LogLevel;
use crate::mcp;

/// Once, by the command that serves. A second call changes nothing.
pub fn start(level: LogLevel) {
    let filter = Targets::new()
        .with_default(filter(level))
        .with_target(mcp::LIBRARY, library(level))
        .with_target(format!("{}::service", mcp::LIBRARY), undelivered(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_filter(filter);
    let _ = tracing_subscriber::registry().with(lines).try_init();
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
