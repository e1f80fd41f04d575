//! Servers in Codex's TOML file. The parser says where things stand; what is not the entry's is copied byte for byte.

use std::ops::Range;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::{Entry, Name};
use super::json::on_one_line;
use super::{Action, Edit, Refusal, Wish, newline_of};

const KEY: &str = "mcp_servers";

pub fn edit(text: &str, wish: Wish<'_>) -> Result<Edit, Refusal> {
    let parsed = DeTable::parse(text).map_err(|error| broken(text, &error))?;
    let servers = match parsed.get_ref().get(KEY) {
        None => None,
        Some(servers) => Some(
            table(servers)
                .ok_or_else(|| Refusal::broken(text, servers.span().start, format!("{KEY:?} should be a table")))?,
        ),
    };
    let name = wish.name().as_str();
    let found = servers.and_then(|servers| servers.get(name));
    let whole = value(text)?;
    let present = &whole[KEY][name];
    if found.is_some() && !wish.may_change(present) {
        return Err(Refusal::Foreign);
    }
    let fields = wish.fields(false, found.map(|_| present))?;
    let (action, edited) = match (wish, found) {
        (Wish::Lack { .. }, None) => (Action::Miss, text.to_owned()),
        (Wish::Lack { .. }, Some(found)) => (Action::Remove, without(text, found)?),
        (Wish::Have(entry), None) => (Action::Add, with(text, &entry.name, &fields)),
        (Wish::Have(entry), Some(found)) => {
            let edited = renewed(text, found, &fields, present)?;
            (if edited == text { Action::Keep } else { entry.renewal(present) }, edited)
        }
    };
    verify(whole.clone(), &edited, wish, &fields)?;
    Ok(Edit { action, text: edited })
}

pub fn snippet(entry: &Entry) -> String {
    block(&entry.name, &entry.fields(false), "\n")
}

fn block(name: &Name, fields: &[(String, Value)], newline: &str) -> String {
    let mut block = format!("[{KEY}.{name}]{newline}");
    for (field, value) in fields {
        block += &assignment(field, value);
        block += newline;
    }
    block
}

/// Strings and lists of them are the same in both languages.
fn assignment(field: &str, value: &Value) -> String {
    format!("{field} = {}", on_one_line(value))
}

fn with(text: &str, name: &Name, fields: &[(String, Value)]) -> String {
    let newline = newline_of(text);
    let rest_of_line = if text.is_empty() || text.ends_with('\n') { "" } else { newline };
    let gap = if text.trim().is_empty() { "" } else { newline };
    [text, rest_of_line, gap, &block(name, fields, newline)].concat()
}

/// With other values for some fields; those that are missing go behind the command.
fn renewed(
    text: &str,
    found: &Spanned<DeValue<'_>>,
    fields: &[(String, Value)],
    present: &Value,
) -> Result<String, Refusal> {
    let entry = table(found).ok_or(Refusal::Unusual)?;
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    for (field, wanted) in fields.iter().filter(|(field, wanted)| present.get(field) != Some(wanted)) {
        if let Some(old) = entry.get(field.as_str()) {
            changes.push((old.span(), on_one_line(wanted)));
            continue;
        }
        let (key, command) = entry.get_key_value("command").ok_or(Refusal::Unusual)?;
        let line = Line::around(text, key.span().start, command.span().end);
        let before = &text[line.start..key.span().start];
        if before.contains('{') {
            let at = command.span().end;
            changes.push((at..at, format!(", {}", assignment(field, wanted))));
        } else {
            let at = line.end;
            changes.push((at..at, format!("{}{before}{}", newline_of(text), assignment(field, wanted))));
        }
    }
    changes.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut edited = text.to_owned();
    for (range, new) in changes {
        edited.replace_range(range, &new);
    }
    Ok(edited)
}

/// Without the lines of an entry and of the tables below it. Comments before them stay: they may be about anything.
fn without(text: &str, found: &Spanned<DeValue<'_>>) -> Result<String, Refusal> {
    let mut lines = Vec::new();
    collect(text, found, &mut lines)?;
    lines.sort_by_key(|line| std::cmp::Reverse(line.start));
    let mut edited = text.to_owned();
    for line in lines {
        let before = &text[..line.start];
        // A table is set off by an empty line, which goes with it.
        let is_header = text[line.start..].trim_start().starts_with('[');
        let gap = if is_header { ["\n\r\n", "\n\n"].into_iter().find(|gap| before.ends_with(gap)) } else { None };
        let start = line.start - gap.map_or(0, |gap| gap.len() - 1);
        let end = behind_line_end(text, line.end);
        edited.replace_range(start..end, "");
    }
    Ok(edited)
}

fn collect(text: &str, found: &Spanned<DeValue<'_>>, lines: &mut Vec<Line>) -> Result<(), Refusal> {
    let span = found.span();
    let is_written_as = |bracket: char| text[span.clone()].starts_with(bracket);
    let Some(entry) = table(found).filter(|_| !is_written_as('{')) else {
        let line = Line::around(text, span.start, span.end);
        // Within a table on one line there are neighbours to think of, and a list of tables is written in pieces.
        let is_own = text[line.start..span.start].contains('=') && !text[line.start..span.start].contains('{');
        if !is_own {
            return Err(Refusal::Unusual);
        }
        lines.push(line);
        return Ok(());
    };
    if is_written_as('[') {
        lines.push(Line::around(text, span.start, span.end));
    }
    entry.iter().try_for_each(|(_, value)| collect(text, value, lines))
}

/// From the beginning of the line on which something begins to the end of that on which it ends, without its break.
#[derive(Clone, Copy, Debug)]
struct Line {
    start: usize,
    end: usize,
}

impl Line {
    fn around(text: &str, start: usize, end: usize) -> Self {
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[end..].find('\n').map_or(text.len(), |newline| end + newline);
        Self { start: line_start, end: line_start + text[line_start..line_end].trim_end_matches('\r').len() }
    }
}

fn behind_line_end(text: &str, position: usize) -> usize {
    let rest = &text[position..];
    position + if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with('\n')) }
}

fn table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    match value.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

/// The whole in the words that entries are compared in.
fn value(text: &str) -> Result<Value, Refusal> {
    let table: toml::Table = toml::from_str(text).map_err(|error| broken(text, &error))?;
    Ok(serde_json::to_value(table).expect("tables have text as keys"))
}

/// As for JSON: the parser tells whether the text says what it should and nothing else.
fn verify(mut wanted: Value, edited: &str, wish: Wish<'_>, fields: &[(String, Value)]) -> Result<(), Refusal> {
    let Ok(found) = value(edited) else { return Err(Refusal::Unusual) };
    wish.apply(&mut wanted, KEY, fields);
    // The last table takes the one that only its header named along.
    let is_empty = |value: &Value| value.get(KEY).is_none_or(|servers| servers == &serde_json::json!({}));
    if wanted == found || is_empty(&wanted) && is_empty(&found) && rest(wanted) == rest(found) {
        Ok(())
    } else {
        Err(Refusal::Unusual)
    }
}

fn rest(mut whole: Value) -> Value {
    if let Some(table) = whole.as_object_mut() {
        table.shift_remove(KEY);
    }
    whole
}

fn broken(text: &str, error: &toml::de::Error) -> Refusal {
    let position = error.span().map_or(0, |span| span.start);
    Refusal::broken(text, position, error.message().lines().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(profile: Option<&'static str>) -> Entry {
        Entry {
            name: Name::usual(profile),
            command: "/bin/sandpen".to_owned(),
            profile,
            options: Vec::new(),
            instead_of: None,
        }
    }

    const OWN: &str = "[mcp_servers.sandpen]\ncommand = \"/bin/sandpen\"\nargs = [\"mcp\"]\n";

    #[track_caller]
    fn have(text: &str) -> Edit {
        edit(text, Wish::Have(&entry(None))).unwrap()
    }

    #[track_caller]
    fn lack(text: &str) -> Edit {
        edit(text, Wish::Lack { name: &Name::usual(None), program: "/bin/sandpen" }).unwrap()
    }

    #[test]
    fn what_was_added_can_be_taken_back_to_the_byte() {
        for text in [
            "",
            "model = \"x\"  # mine\n\n[mcp_servers.a]\ncommand = 'x'\n\n# the end\n",
            "[mcp_servers]\na = { command = 'x' }\n[z]\n",
            "mcp_servers.a.command = 'x'\n",
            "a = 1\r\n\r\n[b]\r\nc = 2\r\n",
        ] {
            let added = have(text);
            assert_eq!(added.action, Action::Add);
            assert!(added.text.replace("\r\n", "\n").ends_with(OWN), "{}", added.text);
            assert_eq!(added.text.contains('\r'), text.contains('\r'));
            assert_eq!(added.text.matches('\n').count(), added.text.lines().count());
            let removed = lack(&added.text);
            assert_eq!((removed.action, &*removed.text), (Action::Remove, text));
        }
        assert_eq!(have("a = 1").text, format!("a = 1\n\n{OWN}"));
        assert_eq!(snippet(&entry(None)), OWN);
        assert_eq!(lack("a = 1"), Edit { action: Action::Miss, text: "a = 1".to_owned() });
    }

    #[test]
    fn an_entry_of_ours_is_renewed_and_what_a_person_added_to_it_stays() {
        let text = "[mcp_servers.sandpen]\n  command = 'sandpen' # here\n  startup_timeout_sec = 20\n\n[mcp_servers.sandpen.env]\nA = '1'\n";
        let renewed = have(text);
        assert_eq!(renewed.action, Action::Update);
        let wanted = text.replace("'sandpen' # here", "\"/bin/sandpen\" # here\n  args = [\"mcp\"]");
        assert_eq!(renewed.text, wanted);
        assert_eq!(have(&wanted), Edit { action: Action::Keep, text: wanted });
        let on_one_line = "mcp_servers = { sandpen = { command = 'sandpen', env = {} }, b = {} }\n";
        let wanted = on_one_line.replace("'sandpen'", "\"/bin/sandpen\", args = [\"mcp\"]");
        assert_eq!(have(on_one_line).text, wanted);
        let dotted = "[mcp_servers]\nsandpen.command = 'sandpen'\n";
        assert_eq!(have(dotted).text, "[mcp_servers]\nsandpen.command = \"/bin/sandpen\"\nsandpen.args = [\"mcp\"]\n");
    }

    #[test]
    fn an_entry_is_taken_out_with_the_tables_below_it_and_nothing_else() {
        let text = "# top\n[mcp_servers.a]\ncommand = 'x'\n\n# about what follows\n[mcp_servers.sandpen]\ncommand = \
                    'sandpen'\nargs = [\n  'mcp',\n]\n# about b\n\n[b]\nc = 1\n\n[mcp_servers.sandpen.env]\nA = '1' # one\n\n[d]\n";
        let wanted = "# top\n[mcp_servers.a]\ncommand = 'x'\n\n# about what follows\n# about b\n\n[b]\nc = 1\n\n[d]\n";
        assert_eq!(lack(text).text, wanted);
        assert_eq!(lack("[mcp_servers]\nsandpen = { command = 'sandpen' }\nb = {}\n").text, "[mcp_servers]\nb = {}\n");
        assert_eq!(lack("a = 1\nmcp_servers.sandpen.command = 'sandpen'\n").text, "a = 1\n");
    }

    #[test]
    fn what_cannot_be_changed_safely_is_left_alone() {
        let on_one_line = "mcp_servers = { sandpen = { command = 'sandpen' }, b = {} }\n";
        assert_eq!(
            edit(on_one_line, Wish::Lack { name: &Name::usual(None), program: "/bin/sandpen" }).unwrap_err(),
            Refusal::Unusual
        );
        assert_eq!(edit("mcp_servers = { b = {} }\n", Wish::Have(&entry(None))).unwrap_err(), Refusal::Unusual);
        let foreign = "[mcp_servers.sandpen]\nurl = 'https://example.com'\n";
        assert_eq!(edit(foreign, Wish::Have(&entry(None))).unwrap_err(), Refusal::Foreign);
    }

    #[test]
    fn a_broken_file_is_refused_with_its_place() {
        for (text, what, line, column) in [
            ("a = 1\nb = \n", "string values must be quoted", 2, 5),
            ("[a]\n[a]\n", "duplicate key", 2, 2),
            ("mcp_servers = 3\n", "should be a table", 1, 15),
            ("[[mcp_servers]]\na = 1\n", "should be a table", 1, 1),
        ] {
            let refusal = edit(text, Wish::Have(&entry(None))).unwrap_err();
            let Refusal::Broken { what: found, line: found_line, column: found_column } = refusal else {
                panic!("{text}: {refusal:?}");
            };
            assert!(found.contains(what), "{found}");
            assert_eq!((found_line, found_column), (line, column), "{text}");
        }
    }
}
