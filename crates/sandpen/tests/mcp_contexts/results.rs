//! What code shows besides text: in order with it, without being saved.

use serde_json::{Value, json};

use super::lab::{Lab, blocks, text, told};
use super::needs_sandboxes;

/// The kinds of an answer's blocks, with the beginning of each text.
#[track_caller]
pub fn kinds(answer: &Value) -> Vec<String> {
    let shown = |block: &Value| match block["type"].as_str().unwrap() {
        "text" => block["text"].as_str().unwrap().lines().next().unwrap_or_default().to_owned(),
        "image" => block["mimeType"].as_str().unwrap().to_owned(),
        other => other.to_owned(),
    };
    blocks(answer).iter().map(shown).collect()
}

/// One white pixel.
pub const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAGwNsOgAAAABJRU5ErkJggg==";

#[test]
fn what_is_displayed_comes_in_order_with_the_text() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let code = format!(
        "import base64\nclass Picture:\n    def _repr_png_(self):\n        return base64.b64decode('{PIXEL}')\nclass Table:\n    def _repr_markdown_(self):\n        return '| a |\\n| --- |\\n| 1 |'\nclass Page:\n    def _repr_html_(self):\n        return '<p>page</p>'\nprint('one')\ndisplay(Picture())\nprint('two')\ndisplay(Table(), Page())\nprint('three')\nPicture()"
    );
    let answer = lab.ask("main", &code);
    assert_eq!(kinds(&answer), ["one", "image/png", "two", "resource_link", "three", "image/png"], "{answer}");
    assert_eq!(answer["content"][1]["data"], PIXEL);
    assert!(text(&answer).contains("two\n| a |\n| --- |\n| 1 |\n"), "{answer}");
    let run = &answer["structuredContent"];
    assert_eq!(run["stdout"], "one\ntwo\nthree\n");
    let displays: Vec<_> = run["displays"].as_array().unwrap().iter().map(|shown| shown["mime_type"].clone()).collect();
    assert_eq!(displays, ["image/png", "text/markdown", "text/html", "image/png"]);
    let page = answer["content"][3]["uri"].as_str().unwrap();
    let read = lab.client.ask("resources/read", json!({ "uri": page }));
    assert!(read.to_string().contains("<p>page</p>"), "{read}");
    assert!(run["result"].as_str().unwrap().contains("Picture object"), "{run}");
    // Nothing lies among the files of the user.
    assert_eq!(run["artifacts"], json!([]));
    let plain = lab.ask("main", "display('words', 42)\n[1, 2]");
    assert_eq!(told(&plain), "words\n42\n[result]\n[1, 2]\n");
}

#[test]
fn too_much_is_cut_and_told() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let many = lab.run("main", "class Text:\n    def _repr_markdown_(self):\n        return 'm' * 1000\nfor _ in range(100):\n    display(Text())");
    let shown = many["displays"].as_array().unwrap();
    assert_eq!(shown.len(), 32, "{many}");
    assert!(shown[31]["text"].as_str().unwrap().contains("more was displayed"), "{many}");
    let large = lab.run("main", "class Page:\n    def _repr_html_(self):\n        return 'x' * (17 << 20)\nPage()");
    assert!(large["displays"][0]["text"].as_str().unwrap().contains("too large to keep"), "{large}");
    let broken =
        lab.run("main", "class Broken:\n    def _repr_png_(self):\n        raise ValueError('no picture')\nBroken()");
    assert!(broken["stderr"].as_str().unwrap().contains("no picture"), "{broken}");
    // The room of old results is given back.
    for _ in 0..10 {
        lab.run("main", "class Page:\n    def _repr_html_(self):\n        return 'x' * (1 << 20)\nPage()");
    }
    let kept = lab.run("main", "import glob\nlen(glob.glob('/tmp/.context-*/*'))");
    assert!(kept["result"].as_str().unwrap().parse::<u32>().unwrap() <= 9, "{kept}");
}

#[test]
fn figures_are_shown_without_being_saved_or_shown() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if lab.run("main", "import matplotlib")["exit_code"] != 0 {
        crate::support::skip("the image has no matplotlib");
        return;
    }
    let code = "import matplotlib.pyplot as plt\nprint('first')\nplt.plot([1, 2, 3])\nplt.show()\nprint('second')\nplt.figure()\nplt.bar([1, 2], [3, 4])\nfigure = plt.figure()\nfigure.gca().plot([3, 1])\nNone";
    let answer = lab.ask_with("main", code, json!({ "timeout_s": 60 }));
    assert_eq!(kinds(&answer), ["first", "image/png", "second", "image/png", "image/png"], "{}", text(&answer));
    assert_eq!(answer["structuredContent"]["stderr"], "", "no warning");
    let again = lab.ask("main", "plt.figure().gca().plot([1])\nplt.gcf()");
    assert_eq!(kinds(&again), ["image/png"], "a figure that is the result is shown once: {}", text(&again));
    assert_eq!(kinds(&lab.ask("main", "len(plt.get_fignums())")), ["[result]"], "they are closed then");
    let drawn = lab.ask("main", "from PIL import Image\nImage.new('RGB', (8, 8), 'red')");
    assert_eq!(kinds(&drawn), ["image/png"], "{}", text(&drawn));
}
