//! What a run has displayed, as its driver wrote it down. Written by whatever ran there, so nothing in it is believed.

use crate::artifact::Artifact;
use crate::path::GuestPath;

/// Of the list of one run; drivers write less.
pub(crate) const MOST_BYTES: u64 = 512 * 1024;
const MOST_ITEMS: usize = 64;
/// Larger files are not offered.
const MOST_FILE_BYTES: u64 = 16 << 20;

/// The name of the list, in the directory of a run.
pub(crate) const LIST: &[u8] = b"results";

/// Something that a run has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Display {
    /// How many bytes of stdout came before it.
    pub at: u64,
    pub shown: Shown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    Text(String),
    Markdown(String),
    /// An image or a page, by its path in the sandbox. What it is, its name and its bytes must tell.
    File(Artifact),
}

/// What a run gave besides output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// The value of the last expression, as text.
    pub value: Option<String>,
    /// It is among the displays too, in a better form.
    pub value_is_displayed: bool,
    pub displays: Vec<Display>,
}

impl Results {
    /// How much memory it takes, about.
    pub fn bytes(&self) -> usize {
        let shown = |display: &Display| match &display.shown {
            Shown::Text(text) | Shown::Markdown(text) => text.len(),
            Shown::File(file) => file.path.as_bytes().len(),
        };
        self.value.as_ref().map_or(0, String::len) + self.displays.iter().map(shown).sum::<usize>()
    }

    /// As far as it can be read: what is broken ends it, and what is unknown is left out.
    ///
    /// `places`: how much of stdout came before the item of each number.
    pub(crate) fn parse(mut text: &[u8], directory: &GuestPath, places: &[(u32, u64)]) -> Self {
        let mut results = Self::default();
        let mut last = 0;
        for number in 1..=MOST_ITEMS as u32 {
            let Some((head, rest)) = split_line(text) else { break };
            let Ok(head) = str::from_utf8(head) else { break };
            let [role, mime, bytes, place] = head.split(' ').collect::<Vec<_>>()[..] else { break };
            let Ok(bytes) = bytes.parse::<u64>() else { break };
            // Drivers show one after the other; one without a place came after those that have one.
            let at = places.iter().find(|(item, _)| *item == number).map_or(last, |(_, at)| *at);
            last = at;
            let body = match place {
                "file" => {
                    text = rest;
                    None
                }
                "inline" => {
                    let Some(body) = usize::try_from(bytes).ok().and_then(|bytes| rest.get(..bytes)) else { break };
                    text = rest[body.len()..].strip_prefix(b"\n").unwrap_or_default();
                    Some(String::from_utf8_lossy(body).into_owned())
                }
                _ => break,
            };
            let shown = match (role, mime, body) {
                ("result" | "displayed", "text/plain", Some(text)) => {
                    results.value = Some(text);
                    results.value_is_displayed = role == "displayed";
                    continue;
                }
                ("display", "text/plain", Some(text)) => Shown::Text(text),
                ("display", "text/markdown", Some(text)) => Shown::Markdown(text),
                ("display", mime, None) => match file(directory, number, mime, bytes) {
                    Some(file) => Shown::File(file),
                    None => continue,
                },
                _ => continue,
            };
            results.displays.push(Display { at, shown });
        }
        results
    }
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    Some((&text[..end], &text[end + 1..]))
}

/// Its path is made of its number and its kind, so that none can be named.
fn file(directory: &GuestPath, number: u32, mime: &str, bytes: u64) -> Option<Artifact> {
    let ending = match mime {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "text/html" => "html",
        _ => return None,
    };
    let path = directory.join(format!("{number}.{ending}").as_bytes()).ok()?;
    (bytes <= MOST_FILE_BYTES).then_some(Artifact { path, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, places: &[(u32, u64)]) -> Results {
        Results::parse(text.as_bytes(), &"/tmp/results/3".parse().unwrap(), places)
    }

    #[test]
    fn what_was_shown_comes_in_order_with_its_place() {
        let text = "display image/png 100 file\ndisplay text/markdown 3 inline\n| |\nresult text/plain 2 inline\n42\n";
        let results = parse(text, &[(1, 10), (2, 20)]);
        assert_eq!(results.value.as_deref(), Some("42"));
        let png = Artifact { path: "/tmp/results/3/1.png".parse().unwrap(), bytes: 100 };
        assert_eq!(
            results.displays,
            [Display { at: 10, shown: Shown::File(png) }, Display { at: 20, shown: Shown::Markdown("| |".to_owned()) },]
        );
    }

    #[test]
    fn what_is_forged_names_nothing_and_costs_nothing() {
        for text in [
            "display ../../etc/passwd 1 file\n",
            "display text/x-python 1 file\n",
            "display image/png 99999999999 file\n",
            "display image/png -1 file\n",
            "display text/plain 18446744073709551615 inline\nx\n",
            "display text/plain 5 inline\nabc",
            "result image/png 3 file\n",
            "nonsense\n",
            "display text/plain 1 inline",
            "\u{1}\n",
            "",
        ] {
            assert_eq!(parse(text, &[]), Results::default(), "{text:?}");
        }
        let many = "display text/plain 1 inline\nx\n".repeat(10_000);
        assert_eq!(parse(&many, &[]).displays.len(), MOST_ITEMS);
    }

    #[test]
    fn a_list_that_was_not_finished_is_read_as_far_as_it_goes() {
        let results = parse("display text/plain 1 inline\nx\ndisplay text/plain 100 inline\nabc", &[]);
        assert_eq!(results.displays, [Display { at: 0, shown: Shown::Text("x".to_owned()) }]);
    }
}
