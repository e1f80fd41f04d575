//! All behaviours of the gateway once more, with a sandbox whose sockets are in another kernel: somebody carries what lands
//! on them.

#[path = "../gateway/caps.rs"]
mod caps;
#[path = "../gateway/crowd.rs"]
mod crowd;
#[path = "../gateway/flows.rs"]
mod flows;
#[path = "../gateway/hostile.rs"]
mod hostile;
#[path = "../gateway/plain.rs"]
mod plain;
#[path = "../gateway/rules.rs"]
mod rules;
#[path = "../gateway/secrets.rs"]
mod secrets;
#[path = "../gateway/support.rs"]
mod support;
#[path = "../gateway/vhost.rs"]
mod vhost;

/// How connections come to the gateway.
const WAY: support::Way = support::Way::Carried;
