//! More requests at once than there are slots for.

use sandpen_tests::Result;
use serde_json::json;

use crate::wire::Wire;

const REQUESTS: usize = 1000;

/// Runs beyond what one owner may have are refused with advice; none is lost, and none is answered for another.
/// Whatever needs no sandbox is answered all the same.
pub fn a_thousand_at_once() -> Result<()> {
    let mut wire = Wire::start()?;
    let mut sent = Vec::new();
    for number in 0..REQUESTS {
        let id = match number % 2 {
            0 => wire.call("run_command", &json!({"argv": ["echo", number.to_string()]}))?,
            _ => wire.call("list_sandboxes", &json!({}))?,
        };
        sent.push((number, id));
    }
    let (mut ran, mut refused) = (0, 0);
    for (number, id) in sent {
        let result = wire.answer(id)?;
        let content = &result["structuredContent"];
        if number % 2 == 1 && content["sandboxes"].is_array() {
            continue;
        }
        let advice = result["content"][0]["text"].as_str().unwrap_or_default();
        if content["stdout"] == format!("{number}\n") {
            ran += 1;
        } else if number % 2 == 0 && result["isError"] == true && advice.contains("(limit_exceeded): ") {
            refused += 1;
        } else {
            return Err(format!("request {number} is not answered as it must be: {result}").into());
        }
    }
    println!("{ran} ran, {refused} were refused");
    if ran < 100 {
        return Err(format!("only {ran} ran").into());
    }
    wire.good("run_command", &json!({"command": "true"}))?;
    Ok(())
}
