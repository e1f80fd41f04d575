//! What a sandbox sends to its way out: questions for names, first bytes of TLS, targets of the proxy.

use egress::fuzzing;
use sandbox::Network;

pub const SEEDS: &[&[u8]] = &[
    b"\x00\x124\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01",
    b"\x00\x124\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x01b\x07example\x00\x00\x1c\x00\x01\x00\x00)\x04\xd0\x00\x00\x00\x00\x00\x00",
    b"\x01\x16\x03\x01\x00A\x01\x00\x00=\x03\x03rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr\x00\x00\x02\x13\x01\x01\x00\x00\x12\x00\x00\x00\x0e\x00\x0c\x00\x00\x09a.example",
    b"\x01GET / HTTP/1.1\x0d\x0a",
    b"\x02a.example:443",
    b"\x02[2001:db8::7]:80",
    b"\x02[::ffff:10.0.0.1]:1",
];

/// The first byte chooses who reads.
pub fn gateway(data: &[u8]) {
    let Some((&reader, bytes)) = data.split_first() else { return };
    match reader % 3 {
        0 => fuzzing::question(bytes, &network()),
        1 => fuzzing::greeting(bytes),
        _ => fuzzing::destination(&String::from_utf8_lossy(bytes)),
    }
}

fn network() -> Network {
    "a.example,*.b.example:22".parse().expect("the list is one that a caller may write")
}
