//! What was run and what it wrote, the newest part of it: however many commands there are, it has a bound.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct Transcript {
    runs: VecDeque<String>,
    /// Of all of them, with what stands between them.
    bytes: usize,
    most: usize,
    is_cut: bool,
}

impl Transcript {
    pub fn new(most: usize) -> Self {
        Self { runs: VecDeque::new(), bytes: 0, most, is_cut: false }
    }

    /// Something older was left out before.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    pub fn push(&mut self, run: String) {
        self.bytes += run.len() + 1;
        self.runs.push_back(run);
        // The rest of one that is there in part is cut when all is told.
        while let Some(first) = self.runs.front()
            && self.bytes - (first.len() + 1) >= self.most
        {
            self.bytes -= first.len() + 1;
            self.runs.pop_front();
            self.is_cut = true;
        }
    }

    /// As much as there is room for, from a line's beginning, with a line that says so where some is missing.
    pub fn text(mut self) -> String {
        let text = self.runs.make_contiguous().join("\n");
        // Behind the end of a line a character begins.
        let start = match text.len().saturating_sub(self.most) {
            0 => 0,
            over => {
                text.as_bytes()[over..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| over + end + 1)
            }
        };
        match self.is_cut || start > 0 {
            true => format!("[what is older is left out]\n{}", &text[start..]),
            false => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3000;

    fn told(runs: &[&str], is_cut: bool) -> String {
        let mut transcript = Transcript::new(MOST);
        if is_cut {
            transcript.cut();
        }
        runs.iter().for_each(|run| transcript.push((*run).to_owned()));
        transcript.text()
    }

    #[test]
    fn the_newest_is_what_is_left_of_much() {
        let middle = "é\n".repeat(MOST / 3);
        assert_eq!(told(&["first\n"], false), "first\n");
        assert_eq!(told(&["first\n", "last\n"], false), "first\n\nlast\n");
        let text = told(&["first\n", &middle, "last\n"], false);
        assert!(text.starts_with("[what is older is left out]\né\né\n") && text.ends_with("é\n\nlast\n"), "{text}");
        assert!(text.len() < MOST + 100);
        assert_eq!(told(&[], true), "[what is older is left out]\n");
        assert_eq!(told(&[], false), "");
    }

    #[test]
    fn what_is_kept_has_a_bound_while_more_comes() {
        let mut transcript = Transcript::new(MOST);
        for number in 0..10_000 {
            transcript.push(format!("$ echo {number}\n{number}\n"));
            assert!(transcript.runs.iter().map(String::len).sum::<usize>() < MOST + 100);
        }
        let text = transcript.text();
        assert!(text.starts_with("[what is older is left out]\n") && text.ends_with("$ echo 9999\n9999\n"), "{text}");
        assert!(text.len() > MOST - 100 && text.len() < MOST + 100);
    }
}
