//! More requests at once than there are slots for.

use sandpen_tests::Result;
use serde_json::json;

use sandpen_tests::wire::Wire;

const REQUESTS: usize = 1000;

/// All of them are runs or look-ups that were sent before any answer was read. None is refused, lost, or answered for
/// another.
pub fn a_thousand_at_once() -> Result<()> {
    let mut wire = Wire::start()?;
    let mut sent = Vec::new();
    for number in 0..REQUESTS {
        let id = match number % 2 {
            0 => wire.call("run_command", &json!({"argv": ["echo", number.to_string()], "wait_s": 600}))?,
            _ => wire.call("list_sandboxes", &json!({}))?,
        };
        sent.push((number, id));
    }
    for (number, id) in sent {
        let result = wire.answer(id)?;
        let content = &result["structuredContent"];
        let answered = match number % 2 {
            0 => content["stdout"] == format!("{number}\n"),
            _ => content["sandboxes"].is_array(),
        };
        if !answered {
            return Err(format!("request {number} is not answered as it must be: {result}").into());
        }
    }
    wire.good("run_command", &json!({"command": "true"}))?;
    Ok(())
}
