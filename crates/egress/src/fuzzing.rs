//! For fuzz targets: what reads the bytes of a sandbox, without the sockets around it. Panics when a promise is broken.

use hickory_proto::op::{Message, MessageType};
use sandbox::{Host, Network};

use crate::dns::{self, Verdict};
use crate::explicit;
use crate::hello::{self, Hello};
use crate::names::Names;
pub use crate::secrets::fuzzing::{replacement, request};

/// A packet to the resolver. Only allowed names are looked for, and only those are ever answered with an address.
pub fn question(packet: &[u8], network: &Network) {
    let (reply, most_answers) = match dns::decide(packet, |host| network.names(host)) {
        Verdict::Drop => return,
        Verdict::Reply(reply) => (reply, 0),
        Verdict::Refuse(name, reply) => {
            assert!(!network.names(&Host::Name(name)), "an allowed name is refused");
            (reply, 0)
        }
        Verdict::Find(name, question) => {
            assert!(network.names(&Host::Name(name.clone())), "{name} is not allowed and looked for");
            let Some(found) = question.found(Names::new().give(&name)) else { return };
            (found, 1)
        }
    };
    let answer = Message::from_vec(&reply).expect("what is sent can be read");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(answer.metadata.id.to_be_bytes(), packet[..2], "the answer belongs to another question");
    assert!(answer.answers.len() <= most_answers, "an address for a name that is not allowed");
}

/// The first bytes of a client. What is decided after some of them stays so, however they are cut.
pub fn greeting(bytes: &[u8]) {
    let whole = hello::read(bytes);
    for end in 0..bytes.len() {
        let part = hello::read(&bytes[..end]);
        assert!(part == Hello::Unfinished || part == whole, "{part:?} after {end} bytes, then {whole:?}");
    }
}

/// The target of a `CONNECT`. What is taken has one spelling, and that spelling is taken for the same.
pub fn destination(text: &str) {
    if let Some((host, port)) = explicit::destination(text) {
        assert_eq!(explicit::destination(&format!("{host}:{port}")), Some((host, port)), "{text:?}");
    }
}
