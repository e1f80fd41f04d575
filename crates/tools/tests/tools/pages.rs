//! Long output of jobs, in parts.

use serde_json::{Value, json};

use crate::support::World;

/// A job that has written so many numbered lines, of which the middle was too much to keep when `padding` is large.
async fn wordy(world: &World, lines: u64, padding: usize) -> Value {
    let sandbox = world.value("create_sandbox", json!({})).await["sandbox_id"].clone();
    let pad = "x".repeat(padding);
    let text: String = (1..=lines).map(|number| format!("line {number} {pad}\n")).collect();
    world.value("write_file", json!({ "sandbox_id": sandbox, "path": "text", "content": text })).await;
    let run = json!({ "sandbox_id": sandbox, "command": "cat text", "background": true });
    let job = world.value("run_command", run).await["job_id"].clone();
    world.value("get_job", json!({ "job_id": job, "wait_s": 20 })).await;
    job
}

#[tokio::test]
async fn all_of_it_is_read_page_by_page() {
    let world = World::new().await;
    let job = wordy(&world, 3000, 20).await;
    for (unit, first, limit) in [("lines", 1, 700), ("bytes", 0, 10_000)] {
        let (mut offset, mut whole) = (json!(first), String::new());
        while !offset.is_null() {
            let ask = json!({ "job_id": job, "unit": unit, "offset": offset, "limit": limit });
            let seen = world.value("get_job", ask).await;
            assert_eq!((&seen["stdout"], &seen["status"]), (&json!(""), &json!("exited")));
            whole += seen["page"]["text"].as_str().unwrap();
            offset = seen["page"]["next_offset"].clone();
        }
        assert_eq!(whole.lines().count(), 3000, "{unit}");
        assert!(whole.starts_with("line 1 ") && whole.contains("\nline 1777 "), "{unit}");
    }
    let page = json!({ "job_id": job, "offset": 2999, "stream": "stdout" });
    let page = world.value("get_job", page).await["page"].clone();
    assert!(page["text"].as_str().unwrap().starts_with("line 2999 "), "{page}");
    assert_eq!(page["next_offset"], Value::Null);
    let errors = world.value("get_job", json!({ "job_id": job, "stream": "stderr" })).await["page"].clone();
    assert_eq!((&errors["text"], &errors["total_bytes"]), (&json!(""), &json!(0)));
}

#[tokio::test]
async fn lines_are_found_with_their_numbers() {
    let world = World::new().await;
    let job = wordy(&world, 3000, 20).await;
    let found = world.value("get_job", json!({ "job_id": job, "search": "line 29" })).await["page"].clone();
    assert_eq!(found["matches"], 1 + 10 + 100, "29, 290 to 299, 2900 to 2999: {found}");
    let numbers: Vec<u64> =
        found["lines"].as_array().unwrap().iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!((numbers.len(), &numbers[..3]), (100, &[29, 290, 291][..]));
    let rest = json!({ "job_id": job, "search": "line 29", "offset": found["next_offset"] });
    let rest = world.value("get_job", rest).await["page"].clone();
    assert_eq!((&rest["matches"], rest["lines"].as_array().unwrap().len()), (&json!(11), 11));
    let nothing = world.value("get_job", json!({ "job_id": job, "search": "nowhere" })).await["page"].clone();
    assert_eq!((&nothing["matches"], &nothing["next_offset"]), (&json!(0), &Value::Null));
    for wrong in [json!({ "search": "" }), json!({ "search": "x", "unit": "bytes" }), json!({ "unit": "pages" })] {
        let mut wrong = wrong;
        wrong["job_id"] = job.clone();
        world.refusal("get_job", wrong).await;
    }
}

#[tokio::test]
async fn what_was_too_much_to_keep_is_named_and_lines_after_it_keep_their_numbers() {
    let world = World::new().await;
    let job = wordy(&world, 2000, 1000).await;
    let found = world.value("get_job", json!({ "job_id": job, "search": "line 1999 " })).await["page"].clone();
    assert_eq!((&found["matches"], &found["lines"][0]["line"]), (&json!(1), &json!(1999)), "{found}");
    assert!(found["left_out_bytes"].as_u64().unwrap() > 1 << 20, "{found}");
    let gone = world.value("get_job", json!({ "job_id": job, "search": "line 1000 " })).await["page"].clone();
    assert_eq!(gone["matches"], 0);
    let (mut offset, mut whole) = (json!(1), String::new());
    while !offset.is_null() {
        let seen = world.value("get_job", json!({ "job_id": job, "offset": offset })).await["page"].clone();
        whole += seen["text"].as_str().unwrap();
        offset = seen["next_offset"].clone();
    }
    assert_eq!(whole.matches("bytes left out").count(), 1);
    assert!(whole.contains("line 1 x") && whole.contains("line 2000 x"));
}
