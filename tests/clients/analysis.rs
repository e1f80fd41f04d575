//! An analysis as an agent does it, with a real client: load in one call, clean in the next, plot, branch in four, compare.

use sandpen_tests::Result;
use serde_json::{Value, json};

use crate::hands::Hands;
use crate::installed::Installed;
use crate::older;
use crate::scene::Scene;
use crate::task::{Client, ensure, text};
use crate::{Need, Plan};

const CLIENT: Client = Client::Python2("auto");

/// Ten days, one of them without a number: what is sold grows by three a day.
const SALES: &str = "day,sold\n1,13\n2,16\n3,\n4,22\n5,25\n6,28\n7,31\n8,34\n9,37\n10,40\n";

const LOAD: &str = "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nlen(rows)";
const CLEAN: &str = "days = [(int(row['day']), int(row['sold'])) for row in rows if row['sold']]\nlen(days)";
const PLOT: &str = "import matplotlib.pyplot as plt\nplt.plot(*zip(*days))\nprint('drawn')";
const ERROR: &str = "sum((sold - (10 + slope * day)) ** 2 for day, sold in days)";

pub(crate) fn plans() -> Vec<Plan> {
    let needs = [CLIENT.need(), Need::Matplotlib];
    vec![Plan::new(format!("analysis::{}::stdio", CLIENT.name()), &needs, analyse)]
}

fn analyse(installed: &Installed) -> Result<()> {
    let scene = Scene::new(installed)?;
    // A client may name no image of a server's daemon; the operator does.
    let server = [scene.stdio_server(), vec!["--image".to_owned(), older::for_work(&scene)?]].concat();
    let mut hands = CLIENT.start(&scene, "stdio", &server)?;
    let files = json!([{ "path": "sales.csv", "content": SALES }]);
    let loaded = run(&mut hands, &json!({ "context": "main", "code": LOAD, "files": files }))?;
    ensure(loaded["structuredContent"]["result"] == "10", || format!("it is not loaded: {loaded}"))?;
    let sandbox = text(&loaded["structuredContent"]["sandbox_id"]).to_owned();
    let mut next = |context: &str, code: &str| {
        run(&mut hands, &json!({ "context": context, "sandbox_id": sandbox, "code": code, "timeout_s": 60 }))
    };
    let cleaned = next("main", CLEAN)?;
    ensure(cleaned["structuredContent"]["result"] == "9", || format!("it is not clean: {cleaned}"))?;
    let plotted = next("main", PLOT)?;
    let mut blocks: Vec<_> = plotted["content"].as_array().into_iter().flatten().collect();
    if installed.daemon.is_some() {
        let remark = blocks.pop().map_or("", |block| text(&block["text"]));
        ensure(remark.starts_with("[this sandbox stands without "), || format!("no missing wall is told: {remark}"))?;
    }
    let kinds: Vec<_> = blocks.iter().map(|block| text(&block["type"])).collect();
    ensure(kinds == ["text", "image"], || format!("there is no plot after the text: {kinds:?}"))?;

    let forked = hands.call("fork_context", &json!({ "sandbox_id": sandbox, "context": "main", "count": 4 }))?;
    let branches = forked["structuredContent"]["contexts"].as_array().cloned().unwrap_or_default();
    ensure(branches.len() == 4, || format!("there are not four branches: {forked}"))?;
    let mut errors = Vec::new();
    for (slope, branch) in (1..).zip(&branches) {
        let code = format!("slope = {slope}\n{ERROR}");
        let tried = run(&mut hands, &json!({ "context": branch, "sandbox_id": sandbox, "code": code }))?;
        errors.push(text(&tried["structuredContent"]["result"]).parse::<u64>().unwrap_or(u64::MAX));
    }
    let best = errors.iter().position(|error| *error == 0);
    ensure(best == Some(2), || format!("the third branch is not the one that fits: {errors:?}"))?;
    let untouched =
        run(&mut hands, &json!({ "context": "main", "sandbox_id": sandbox, "code": "'slope' in globals()" }))?;
    ensure(untouched["structuredContent"]["result"] == "False", || format!("a branch has changed it: {untouched}"))?;
    hands.call("stop_sandbox", &json!({ "sandbox_id": sandbox }))?;
    hands.close()?;
    let left = scene.running();
    ensure(left.is_empty(), || format!("still running: {left:?}"))
}

fn run(hands: &mut Hands, arguments: &Value) -> Result<Value> {
    let mut arguments = arguments.clone();
    arguments["language"] = json!("python");
    let result = hands.call("run_code", &arguments)?;
    ensure(result["isError"] != true, || format!("it was refused: {result}"))?;
    Ok(result)
}
