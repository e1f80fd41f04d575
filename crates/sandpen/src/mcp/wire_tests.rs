use super::*;

#[track_caller]
fn refused(text: &str) -> (Option<RequestId>, i32) {
    match read(text.as_bytes()) {
        Incoming::One(Message::Broken { id, error }) => (id, error.code.0),
        other => panic!("{text:.100} was taken: {other:?}"),
    }
}

fn request_with_id(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)
}

#[test]
fn what_is_not_json_is_a_parse_error() {
    for text in ["", "x", "{", "{\"a\":}", "\u{7f}", "[1,", "nul"] {
        assert_eq!(refused(text), (None, -32700), "{text:?}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(refused(&deep), (None, -32700));
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    assert_eq!(refused(&deep), (None, -32700));
}

#[test]
fn what_is_not_json_rpc_is_an_invalid_request_with_the_id_that_could_be_read() {
    for text in ["1", "\"x\"", "null", "{}", "[]", r#"{"id":[1],"jsonrpc":"2.0","method":"ping"}"#] {
        assert_eq!(refused(text), (None, -32600), "{text:?}");
    }
    let seven = Some(RequestId::Number(7));
    for text in [
        r#"{"id":7}"#,
        r#"{"id":7,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":7}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":1}"#,
    ] {
        assert_eq!(refused(text), (seven.clone(), -32600), "{text:?}");
    }
    assert_eq!(refused(r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}"#), (seven, -32602));
}

#[test]
fn identifiers_are_kept_exactly_or_refused() {
    for (text, id) in [
        ("0", RequestId::Number(0)),
        ("-9223372036854775808", RequestId::Number(i64::MIN)),
        ("9223372036854775807", RequestId::Number(i64::MAX)),
        ("2.0", RequestId::Number(2)),
        ("\"\"", RequestId::String("".into())),
        ("\"7\"", RequestId::String("7".into())),
    ] {
        match read(request_with_id(text).as_bytes()) {
            Incoming::One(Message::Request { id: read, .. }) => assert_eq!(read, id),
            other => panic!("{text} was not taken: {other:?}"),
        }
    }
    let long = format!("\"{}\"", "x".repeat(LONGEST_ID + 1));
    for text in ["null", "true", "1.5", "9223372036854775808", "1e300", "1e19", "{}", long.as_str()] {
        assert_eq!(refused(&request_with_id(text)), (None, -32600), "{text:.40}");
    }
}

#[test]
fn a_batch_is_bounded_and_keeps_its_order() {
    let two = format!("[{},1]", request_with_id("1"));
    match read(two.as_bytes()) {
        Incoming::Many(messages) => {
            assert!(matches!(messages[0], Message::Request { .. }));
            assert!(matches!(messages[1], Message::Broken { .. }));
        }
        other => panic!("{other:?}"),
    }
    let many = format!("[{}1]", "1,".repeat(MOST_IN_BATCH));
    assert_eq!(refused(&many), (None, -32600));
}

#[test]
fn a_method_that_is_known_and_badly_called_is_still_a_request() {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":5}}"#;
    assert_eq!(refused(text), (Some(RequestId::Number(1)), -32602));
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"nome":5}}"#;
    assert!(matches!(read(text.as_bytes()), Incoming::One(Message::Request { .. })));
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}"#;
    assert!(matches!(read(text.as_bytes()), Incoming::One(Message::Request { .. })));
}

#[test]
fn an_unread_identifier_is_answered_as_null() {
    let text = error_text(None, &ErrorData::parse_error("x", None));
    assert_eq!(
        serde_json::from_slice::<Value>(&text).unwrap(),
        json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "x" } })
    );
}

/// Messages with bytes changed, left out and doubled, as a broken client or a hostile one would send them.
#[test]
fn whatever_is_read_is_understood_or_answered() {
    let samples = [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"x"}}}"#,
        r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"}]"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":-7,"reason":"ä"}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"progressToken":1.5,"x":[1,[2]]}}}"#,
    ];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    for _ in 0..20_000 {
        let mut text = samples[below(samples.len())].as_bytes().to_vec();
        for _ in 0..=below(4) {
            let (from, to) = (below(text.len()), below(text.len()));
            match below(4) {
                0 => text[from] = b"{}[],:\"\\0159.eE-n\xff\x00"[below(19)],
                1 => drop(text.drain(from.min(to)..from.max(to))),
                2 => text.extend_from_within(from.min(to)..from.max(to)),
                _ => text.swap(from, to),
            }
            if text.is_empty() {
                text.push(b'{');
            }
        }
        let messages = match read(&text) {
            Incoming::One(message) => vec![message],
            Incoming::Many(messages) => messages,
        };
        for message in messages {
            if let Message::Broken { id, error } = message {
                let answer: Value = serde_json::from_slice(&error_text(id.as_ref(), &error)).unwrap();
                assert!(answer["error"]["code"].is_i64());
            }
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_answered_under_its_own_identifier() {
    let found = |start: &str, end: &str| match too_long(7, start.as_bytes(), end.as_bytes()) {
        Incoming::One(Message::Broken { id, .. }) => id.map(|id| json!(id)),
        _ => panic!("it is broken"),
    };
    assert_eq!(found(r#"{"jsonrpc":"2.0","id":5,"method":"x","params":{"#, "xxx"), Some(json!(5)));
    assert_eq!(found(r#" { "id" : "a b" , "method":"#, "xxx"), Some(json!("a b")));
    assert_eq!(found(r#"{"method":"x","#, r#"xxx"},"jsonrpc":"2.0","id":7}"#), Some(json!(7)));
    assert_eq!(found(r#"{"method":"x","#, r#"xxx"},"jsonrpc":"2.0","id": "q" } "#), Some(json!("q")));
    // Of an inner object, or of none.
    assert_eq!(found(r#"{"method":"x","params":{"id":5,"#, r#"xxx","id":7}}"#), None);
    assert_eq!(found(r#"{"method":"x","#, r#"\"id\":7}"#), None);
    assert_eq!(found("xxx", "xxx"), None);
}
