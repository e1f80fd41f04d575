use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::*;

const VALUE: &str = "s3cr/t+\"k\\y é😀%41 z";

fn masking(values: &[&str]) -> Arc<Patterns> {
    let mut patterns = Patterns::default();
    for (number, value) in values.iter().enumerate() {
        patterns.add(Spelling::all(value), format!("<{number}>").into_bytes());
    }
    Arc::new(patterns)
}

fn whole(patterns: &Arc<Patterns>, text: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(&Replacer::whole(patterns, text.as_ref()).0).into_owned()
}

fn in_pieces(patterns: &Arc<Patterns>, text: &[u8], cuts: &[usize]) -> String {
    let (mut replacer, mut out, mut from) = (Replacer::new(Arc::clone(patterns)), Vec::new(), 0);
    for &cut in cuts {
        replacer.push(&text[from..cut], &mut out);
        from = cut;
    }
    replacer.push(&text[from..], &mut out);
    replacer.finish(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_value_is_found_in_every_spelling() {
    let patterns = masking(&[VALUE]);
    let quoted = serde_json::to_string(VALUE).unwrap();
    for spelled in [
        VALUE.to_owned(),
        percent(VALUE),
        percent(VALUE).to_lowercase(),
        percent(VALUE).replace("%20", "+"),
        percent_encoding::utf8_percent_encode(VALUE, percent_encoding::NON_ALPHANUMERIC).to_string(),
        quoted[1..quoted.len() - 1].to_owned(),
        quoted[1..quoted.len() - 1].replace('/', "\\/"),
        escaped(VALUE),
        escaped(VALUE).to_uppercase().replace("\\U", "\\u"),
        VALUE.bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
        hex(VALUE),
        hex(VALUE).to_uppercase(),
    ] {
        assert_eq!(whole(&patterns, format!("a{spelled}b {spelled}{spelled}")), "a<0>b <0><0>", "{spelled}");
    }
}

#[test]
fn a_value_is_found_in_base64_wherever_it_stands() {
    for value in ["12345678", "??>>??>>", VALUE] {
        let patterns = masking(&[value]);
        for (before, after) in [("", ""), ("a", "z"), ("user:", ""), ("ab", "yz"), ("", "xyz")] {
            let text = format!("{before}{value}{after}");
            for encoded in [
                STANDARD.encode(&text),
                URL_SAFE_NO_PAD.encode(&text),
                percent(&STANDARD.encode(&text)),
                STANDARD.encode(&text).replace('/', "\\/").replace('+', "\\u002B"),
            ] {
                let masked = whole(&patterns, format!("{{\"a\": \"{encoded}\"}}"));
                assert_eq!(masked.matches("<0>").count(), 1, "{encoded} {masked}");
                // At most the characters that the value shares with its neighbours stay.
                let neighbours = STANDARD.encode(before).len() + STANDARD.encode(after).len() + 4;
                let bound = "{\"a\": \"<0>\"}".len() + 6 * neighbours;
                assert!(masked.len() <= bound, "{encoded} {masked}");
            }
        }
    }
}

#[test]
fn what_only_looks_alike_is_left_alone() {
    let patterns = masking(&["abcdefgh", "%zz\\qabc"]);
    for text in [
        "abcdefg",
        "bcdefgh",
        "abcdefgabcdefg",
        "abcd efgh",
        "%6%61bcdefg",
        "\\u006\\u0061bcdefg",
        "\\ud800\\u0061bcdefg",
        "100%",
        "\\",
        "%zz\\q",
        "%%%%",
        "\\\\\\",
        "",
    ] {
        assert_eq!(whole(&patterns, text), text);
    }
    assert_eq!(
        whole(&patterns, "abcdefabcdefgh%%6abcdefgh\\\\abcdefgh%zz\\qabc\\ud800abcdefgh"),
        "abcdef<0>%%6<0>\\\\<0><1>\\ud800<0>"
    );
}

#[test]
fn every_cut_gives_the_same() {
    let patterns = masking(&["abcabcab", "é😀é😀"]);
    let text = format!(
        "xabcabcabcab {} {}abcab{}y{}é😀é😀\\ud83d\\u",
        percent("abcabcab"),
        escaped("é😀é😀"),
        hex("abcabcab"),
        STANDARD.encode("1abcabcab2")
    );
    let text = text.as_bytes();
    let expected = whole(&patterns, text);
    assert_eq!(expected.matches("<0>").count(), 4, "{expected}");
    assert_eq!(expected.matches("<1>").count(), 2, "{expected}");
    for first in 0..=text.len() {
        for second in first..=text.len() {
            assert_eq!(in_pieces(&patterns, text, &[first, second]), expected, "{first} {second}");
        }
    }
    let all: Vec<usize> = (1..text.len()).collect();
    assert_eq!(in_pieces(&patterns, text, &all), expected);
}

/// Random streams over a small alphabet, against a search that is too simple to be wrong.
#[test]
fn a_plain_text_is_replaced_as_a_simple_search_would() {
    let mut patterns = Patterns::default();
    patterns.add(vec![Spelling::plain("aab")], b"<0>".to_vec());
    patterns.add(vec![Spelling::plain("bba")], b"<1>".to_vec());
    let patterns = Arc::new(patterns);
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..2000 {
        let text: Vec<u8> = (0..random(40)).map(|_| b"aab b"[random(5) as usize]).collect();
        let mut covered = vec![None; text.len()];
        for (number, needle) in [b"aab", b"bba"].iter().enumerate() {
            for start in 0..text.len().saturating_sub(2) {
                if &&text[start..start + 3] == needle {
                    covered[start..start + 3].iter_mut().for_each(|place| *place = Some((number, start)));
                }
            }
        }
        let kept: Vec<u8> =
            text.iter().zip(&covered).filter(|(_, place)| place.is_none()).map(|(byte, _)| *byte).collect();
        let cuts: Vec<usize> = (1..text.len()).filter(|_| random(3) == 0).collect();
        let replaced = in_pieces(&patterns, &text, &cuts);
        assert_eq!(replaced, whole(&patterns, &text));
        let rest = replaced.replace("<0>", "").replace("<1>", "");
        assert_eq!(rest.as_bytes(), kept, "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn values_that_overlap_leave_no_rest() {
    let patterns = masking(&["abcdefgh", "abcdefghijkl", "ghijklmnop"]);
    assert_eq!(whole(&patterns, "-abcdefghijklmnop-"), "-<0>-");
    assert_eq!(whole(&masking(&["aaaaaaaa"]), "a".repeat(100)), "<0>");
}

#[test]
fn lines_are_told_at_once() {
    let mut replacer = Replacer::new(masking(&["abcdefgh"]));
    let mut out = Vec::new();
    replacer.push(b"data: abcdefgh\n\n", &mut out);
    assert_eq!(out, b"data: <0>\n\n");
    replacer.push(b"data: abc\n\n", &mut out);
    assert_eq!(out, b"data: <0>\n\ndata: abc\n\n");
}

/// Otherwise whoever can choose an answer would learn the value letter by letter.
#[test]
fn what_is_held_back_says_nothing_about_the_value() {
    let told = |piece: &[u8]| {
        let (mut replacer, mut out) = (Replacer::new(masking(&["abcdefgh"])), Vec::new());
        replacer.push(piece, &mut out);
        out.len()
    };
    for length in 1..8 {
        assert_eq!(told(&b"x abcdefgh"[..2 + length]), told(&b"x zzzzzzzz"[..2 + length]));
    }
}

/// Each of these would take minutes if the work were quadratic.
#[test]
fn hostile_streams_cost_no_more_than_others() {
    let value = "a".repeat(8192);
    let nearly = format!("{}b", "a".repeat(8191));
    let patterns = masking(&[&value, &nearly]);
    let began = Instant::now();
    for unit in ["a", "\\u0061", "%61", "aaab", "61", "\\", "%", "\\ud83d"] {
        let text = unit.repeat((256 << 10) / unit.len());
        let (mut replacer, mut out) = (Replacer::new(Arc::clone(&patterns)), Vec::new());
        for piece in text.as_bytes().chunks(3) {
            replacer.push(piece, &mut out);
            out.clear();
            assert!(replacer.held.len() <= 4 * patterns.longest, "{unit}");
            assert!(replacer.hits.len() <= patterns.longest, "{unit}");
        }
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
