//! Secrets on their way: answers in which values are masked, requests into which they are put.

use egress::fuzzing;

pub const SEEDS: &[&[u8]] = &[
    b"\x00\x01xabcabcabcabdx",
    b"\x00\x03%61bcabcab\\u0061bcabcab 6162636162636162",
    b"\x00\x02YWJjYWJjYWI=%41\\u0061 \xc3\xa9\xf0\x9f\x98\x80",
    b"\x00\x05\\x61bcabcab%2561\\ud83d\\ude00+",
    b"\x01GET\n/a?b=@\nhost:api.example.com\nx:@@",
    b"\x01POST\nhttps://api.example.com/@\nHost: API.example.com:443\nAuthorization: Basic @\nConnection: x, upgrade",
    b"\x01GET\n/\nhost: evil.example\nupgrade: h2c",
];

/// The first byte chooses the direction.
pub fn secret(data: &[u8]) {
    let Some((&direction, bytes)) = data.split_first() else { return };
    if direction % 2 == 0 { fuzzing::replacement(bytes) } else { fuzzing::request(bytes) }
}
