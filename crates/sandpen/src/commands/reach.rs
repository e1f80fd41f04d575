//! How to reach a new sandbox without us, for whoever reads the screen.

use sandbox::Reach;

use crate::output;

pub fn tell(reach: Option<&Reach>) {
    if let Some(reach) = reach {
        output::note("it can be reached without sandpen, too", Some(&in_lines(reach)));
    }
}

/// One command a line.
fn in_lines(reach: &Reach) -> String {
    let Reach { enter, stop, start, remove } = reach;
    let lines = [("enter", Some(enter)), ("stop", stop.as_ref()), ("start", start.as_ref()), ("remove", Some(remove))];
    let lines = lines.into_iter().filter_map(|(word, command)| Some(format!("  {word:<7} {}", command?)));
    lines.fold(String::new(), |all, line| format!("{all}\n{line}"))
}
