//! The service on the fake engine: what it promises to its callers, with failures, delays and races put in.

mod expiry;
mod fairness;
mod history;
mod images;
mod jobs;
mod languages;
mod life;
mod network;
mod output;
mod overhead;
mod packages;
mod persistence;
mod quotas;
mod rates;
mod support;
mod trees;
mod vanishing;
