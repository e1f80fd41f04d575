use super::super::client::{Client, Format};
use super::super::entry::Name;
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

fn shape(client: Client) -> Shape {
    let Format::Json(shape) = client.format() else { panic!("{client:?} has no JSON") };
    shape
}

#[track_caller]
fn added(client: Client, text: &str) -> String {
    let edit = edit(text, shape(client), Wish::Have(&entry(None))).unwrap();
    assert_eq!(edit.action, Action::Add);
    edit.text
}

#[track_caller]
fn removed(client: Client, text: &str) -> String {
    let edit = edit(text, shape(client), Wish::Lack { name: &Name::usual(None), program: "/bin/sandpen" }).unwrap();
    assert_eq!(edit.action, Action::Remove);
    edit.text
}

#[track_caller]
fn refusal(client: Client, text: &str) -> Refusal {
    edit(text, shape(client), Wish::Have(&entry(None))).unwrap_err()
}

#[test]
fn a_new_file_is_the_snippet() {
    let wanted = "{\n  \"mcpServers\": {\n    \"sandpen\": {\n      \"command\": \"/bin/sandpen\",\n      \"args\": [\n        \
                  \"mcp\"\n      ]\n    }\n  }\n}\n";
    for nothing in ["", " \n\n"] {
        assert_eq!(added(Client::Cursor, nothing), wanted);
    }
    assert_eq!(snippet(shape(Client::Cursor), &entry(None)), wanted);
    let typed: Value = serde_json::from_str(&added(Client::Vscode, "{}")).unwrap();
    let own = json!({ "type": "stdio", "command": "/bin/sandpen", "args": ["mcp"] });
    assert_eq!(typed, json!({ "servers": { "sandpen": own } }));
    assert!(added(Client::Zed, "// mine\n").starts_with("// mine\n{\n  \"context_servers\""));
}

#[test]
fn comments_commas_and_indentation_stay() {
    let text = "// Settings\n{\n\t\"theme\": \"dark\", // at night\n\t\"context_servers\": {\n\t\t/* first */\n\t\t\"a\": { \"command\": \
                \"x\" }, // keep\n\n\t\t// the end\n\t},\n\n\t\"last\": [1,2,],\n}\n";
    let after = added(Client::Zed, text);
    let own = "\n\t\t\"sandpen\": {\n\t\t\t\"command\": \"/bin/sandpen\",\n\t\t\t\"args\": [\n\t\t\t\t\"mcp\"\n\t\t\t]\n\t\t},";
    assert_eq!(after, text.replace("// keep", &format!("// keep{own}")));
    assert_eq!(removed(Client::Zed, &after), text);
}

#[test]
fn what_was_added_can_be_taken_back_to_the_byte() {
    for text in [
        "{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}",
        "{\r\n    \"mcpServers\": {\r\n        \"a\": {\"command\": \"x\"}\r\n    },\r\n    \"z\": 1\r\n}\r\n",
        "{\n  \"mcpServers\": {\n    \"a\": 1 // one\n    // two\n  }\n}\n",
        "{\n  \"mcpServers\": {\n    \"a\": 1, /* one */\n  },\n}\n",
        "{\n  \"mcpServers\": {\n    \"a\": 1}}\n",
        "{\n  \"mcpServers\": {},\n  \"b\": null\n}\n",
        "{\"mcpServers\":{\"a\":{\"command\":\"x\"}},\"b\":[1,2]}",
        "{\"mcpServers\":{}}",
        "{ \"mcpServers\": { \"a\": { \"command\": \"x\" } } }\n",
        "{ \"mcpServers\": { \"a\": 1, } }",
        "{\n  \"mcpServers\": { \"a\": 1 }\n}\n",
        "{\n  \"mcpServers\": { \"a\": 1 // one\n }\n}\n",
        "{\n  \"mcpServers\": {\n    // nothing yet\n  }\n}\n",
        "{\n  \"mcpServers\": {\n\n    \"a\": 1\n\n  }\n}\n",
    ] {
        let after = added(Client::Cursor, text);
        let back = removed(Client::Cursor, &after);
        // A comma behind the last property of a line goes with what was put behind it.
        let wanted = text.replace("1, } }", "1 } }");
        assert_eq!(back, wanted, "{after}");
    }
}

#[test]
fn a_file_on_one_line_stays_on_one() {
    let after = added(Client::Cursor, "{\"a\":1}");
    assert_eq!(after, r#"{"a":1,"mcpServers":{"sandpen":{"command":"/bin/sandpen","args":["mcp"]}}}"#);
    let after = added(Client::Cursor, "{ \"a\": 1 }");
    assert_eq!(after, r#"{ "a": 1, "mcpServers": {"sandpen": {"command": "/bin/sandpen", "args": ["mcp"]}} }"#);
}

#[test]
fn an_entry_is_taken_out_wherever_it_stands() {
    let own = r#""sandpen": {"command": "sandpen"}"#;
    for (text, wanted) in [
        (format!("{{\"mcpServers\": {{{own}, \"b\": 1}}}}"), "{\"mcpServers\": {\"b\": 1}}"),
        (format!("{{\"mcpServers\": {{\"a\": 1, {own}, \"b\": 1}}}}"), "{\"mcpServers\": {\"a\": 1, \"b\": 1}}"),
        (format!("{{\"mcpServers\": {{\"a\": 1, {own}}}}}"), "{\"mcpServers\": {\"a\": 1}}"),
        (format!("{{\"mcpServers\": {{ {own} }}}}"), "{\"mcpServers\": {}}"),
        (format!("{{\"mcpServers\": {{\n  {own}, // ours\n  \"b\": 1\n}}}}"), "{\"mcpServers\": {\n  \"b\": 1\n}}"),
        (format!("{{\"mcpServers\": {{\n  // above\n  {own}\n}}}}"), "{\"mcpServers\": {\n  // above\n}}"),
        (
            format!("{{\"mcpServers\": {{\n  \"a\": 1 // one\n  , {own}\n}}}}"),
            "{\"mcpServers\": {\n  \"a\": 1 // one\n\n}}",
        ),
    ] {
        assert_eq!(removed(Client::Cursor, &text), wanted);
    }
}

#[test]
fn an_entry_of_ours_is_renewed_and_what_a_person_added_to_it_stays() {
    let text = "{\n  \"servers\": {\n    \"sandpen\": {\n      \"command\": \"/old/sandpen\", // moved\n      \"args\": [\"mcp\", \
                \"--memory\", \"2G\"],\n      \"env\": {\"SANDPEN_LOG\": \"debug\"}\n    }\n  }\n}\n";
    let renewed = edit(text, shape(Client::Vscode), Wish::Have(&entry(None))).unwrap();
    assert_eq!(renewed.action, Action::Update);
    let wanted = text
        .replace("/old/sandpen", "/bin/sandpen")
        .replace("\"debug\"}\n", "\"debug\"},\n      \"type\": \"stdio\"\n");
    assert_eq!(renewed.text, wanted);
    let again = edit(&renewed.text, shape(Client::Vscode), Wish::Have(&entry(None))).unwrap();
    assert_eq!((again.action, again.text), (Action::Keep, wanted));
}

#[test]
fn the_shape_that_zed_had_is_brought_up_to_date() {
    let text =
        r#"{ "context_servers": { "sandpen": { "command": { "path": "sandpen", "args": ["mcp", "--read-only"] } } } }"#;
    let renewed = edit(text, shape(Client::Zed), Wish::Have(&entry(None))).unwrap();
    let wanted =
        r#"{ "context_servers": { "sandpen": { "command": "/bin/sandpen", "args": ["mcp", "--read-only"] } } }"#;
    assert_eq!((renewed.action, &*renewed.text), (Action::Update, wanted));
    let text = "{ \"context_servers\": { \"sandpen\": { \"command\": {\n  \"path\": \"sandpen\", \"args\": [], \"env\": {\"A\": \
                \"1\"}, \"timeout\": 9\n}, \"settings\": {} } } }";
    let renewed = edit(text, shape(Client::Zed), Wish::Have(&entry(None))).unwrap();
    let whole: Value = serde_json::from_str(&renewed.text).unwrap();
    assert_eq!(
        whole["context_servers"]["sandpen"],
        json!({ "command": "/bin/sandpen", "settings": {}, "args": ["mcp"], "env": { "A": "1" }, "timeout": 9 })
    );
}

#[test]
fn another_server_of_that_name_is_left_alone() {
    let text = r#"{"mcpServers": {"sandpen": {"command": "npx", "args": ["sandpen"]}}}"#;
    assert_eq!(refusal(Client::Cursor, text), Refusal::Foreign);
    let name = Name::usual(None);
    let wish = Wish::Lack { name: &name, program: "/bin/sandpen" };
    assert_eq!(edit(text, shape(Client::Cursor), wish).unwrap_err(), Refusal::Foreign);
    let nothing = edit("{}", shape(Client::Cursor), wish).unwrap();
    assert_eq!(nothing, Edit { action: Action::Miss, text: "{}".to_owned() });
}

#[test]
fn what_a_client_could_not_read_is_refused_with_its_place() {
    for (client, text, what, line, column) in [
        (Client::ClaudeDesktop, "{\n  \"a\": 1,\n}", "trailing commas are not allowed", 2, 9),
        (Client::ClaudeDesktop, "{ // x\n}", "comments are not allowed", 1, 3),
        (Client::Gemini, "{ // x\n \"a\": [1,]}", "trailing commas are not allowed", 2, 9),
        (Client::Cursor, "{\"ä\": 1 \"b\": 2}", "expected comma", 1, 8),
        (Client::Cursor, "{\"a\": 1", "unterminated object", 1, 1),
        (Client::Cursor, "[]", "this should be an object", 1, 1),
        (Client::Cursor, "{}\n{}", "text cannot contain more than one JSON value", 2, 1),
        (Client::Cursor, "{\n \"mcpServers\": []}", "\"mcpServers\" should be an object", 2, 16),
        (Client::Cursor, "{\"mcpServers\": null}", "\"mcpServers\" should be an object", 1, 16),
        (Client::Cursor, "{\"a\": 1,\n\"a\": 2}", "the key \"a\" is there twice", 2, 1),
        (Client::Cursor, "{\"mcpServers\": {\"b\": 1, \"b\": 2}}", "the key \"b\" is there twice", 1, 25),
    ] {
        let found = refusal(client, text);
        assert_eq!(found, Refusal::Broken { what: what.to_owned(), line, column }, "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(refusal(Client::Cursor, &deep), Refusal::Broken { .. }));
}
