//! What single runs show besides text, as runs in contexts do, while they stay what `python3 FILE` is.

use serde_json::{Value, json};

use super::lab::{Lab, text};
use super::needs_sandboxes;
use super::results::{PIXEL, kinds};

/// Some Python without a context, in a sandbox of its own or in that of the lab.
fn single(lab: &mut Lab, fresh: bool, code: &str) -> Value {
    let mut arguments = json!({ "language": "python", "code": code, "timeout_s": 60 });
    if !fresh {
        arguments["sandbox_id"] = json!(lab.sandbox);
    }
    lab.client.call("run_code", arguments)
}

fn has(lab: &mut Lab, module: &str) -> bool {
    let found = single(lab, false, &format!("import {module}"))["structuredContent"]["exit_code"] == 0;
    if !found {
        crate::support::skip(&format!("the image has no {module}"));
    }
    found
}

#[test]
fn what_a_single_run_displays_comes_in_order_with_the_text() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let code = format!(
        "import base64, sys\nclass Picture:\n    def _repr_png_(self):\n        return base64.b64decode('{PIXEL}')\nclass Page:\n    def _repr_html_(self):\n        return '<p>page</p>'\nprint('one')\ndisplay(Picture())\nprint('two')\ndisplay(Page(), 'words')\nprint('three')\nsys.exit(3)"
    );
    for fresh in [true, false] {
        let answer = single(&mut lab, fresh, &code);
        assert_eq!(kinds(&answer)[..4], ["one", "image/png", "two", "resource_link"], "{answer}");
        assert_eq!(answer["content"][1]["data"], PIXEL);
        let run = &answer["structuredContent"];
        assert_eq!((&run["stdout"], &run["stderr"]), (&json!("one\ntwo\nwords\nthree\n"), &json!("")));
        assert_eq!((&run["exit_code"], &run["artifacts"]), (&json!(3), &json!([])));
        let page = answer["content"][3]["uri"].as_str().unwrap();
        let read = lab.client.ask("resources/read", json!({ "uri": page }));
        assert!(read.to_string().contains("<p>page</p>"), "{read}");
    }
    // The room of old results is given back, and what showed nothing has left nothing.
    for _ in 0..9 {
        single(&mut lab, false, "class Page:\n    def _repr_html_(self):\n        return 'x'\ndisplay(Page())");
    }
    let left =
        single(&mut lab, false, "import os\nprint(len([name for name in os.listdir('/tmp') if '.run-' in name]))");
    assert_eq!(left["structuredContent"]["stdout"], "8\n");
}

#[test]
fn figures_of_a_single_run_are_shown_once() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if !has(&mut lab, "matplotlib") {
        return;
    }
    let begin = "import matplotlib.pyplot as plt\nprint('first')\nplt.plot([1, 2, 3])\n";
    for (number, (more, images)) in [
        ("", 1),
        ("plt.show()\nprint('second')\nplt.figure()\nplt.bar([1], [2])", 2),
        // As a file of the run alone, whatever comes then.
        ("plt.savefig('plot.png')", 1),
        ("plt.savefig('plot.png')\nplt.show()", 1),
        ("plt.savefig('plot')\nplt.close()", 1),
        // Another picture than the file, or none that the run is asked for.
        ("plt.savefig('plot.png')\nplt.title('more')", 2),
        ("plt.savefig('/tmp/plot.png')", 1),
        ("import io\nplt.savefig(io.BytesIO())", 1),
        ("import os\nif os.fork() == 0:\n    raise SystemExit\nos.wait()", 1),
        ("raise ValueError('late')", 1),
        ("import os\nos._exit(0)", 0),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = single(&mut lab, number < 3, &format!("{begin}{more}"));
        let found = kinds(&answer);
        let shown = found.iter().filter(|kind| *kind == "image/png").count();
        assert_eq!((found[0].as_str(), shown), ("first", images), "{more}: {found:?} {}", text(&answer));
        let stderr = answer["structuredContent"]["stderr"].as_str().unwrap();
        assert!(!stderr.contains("display") && !stderr.contains("Warning"), "{more}: {stderr}");
        assert_eq!(stderr.contains("Traceback"), more.contains("ValueError"), "{more}: {stderr}");
    }
    let drawn = single(&mut lab, true, "from PIL import Image\nImage.new('RGB', (8, 8), 'red').show()\nprint('x')");
    assert_eq!(kinds(&drawn), ["image/png", "x"], "{}", text(&drawn));
}

#[test]
fn tables_and_pages_of_a_single_run_are_shown() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if has(&mut lab, "pandas") {
        let table = single(&mut lab, true, "import pandas\ndisplay(pandas.DataFrame({'a': [1, 2]}))\nprint('x')");
        assert!(text(&table).contains("|  | a |\n| --- | --- |\n| 0 | 1 |"), "{}", text(&table));
    }
    if has(&mut lab, "plotly") {
        let code = "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1, 2])).show()";
        assert_eq!(kinds(&single(&mut lab, true, code)), ["resource_link"]);
    }
}

#[test]
fn what_code_does_to_the_marks_is_its_own_affair() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let picture = "class Text:\n    def _repr_markdown_(self):\n        return '*shown*'\n";
    for code in [
        // Elsewhere, gone, and said without anything to show.
        "import os\nos.dup2(os.open('led', os.O_WRONLY | os.O_CREAT), 1)\ndisplay(Text())\nassert b'\\x1e' not in open('led', 'rb').read()",
        "import os\nos.close(1)\ndisplay(Text())",
        "print('\\x1e.run-only item 7')",
        "print('\\x1e.run-only nonsense')",
        "import os\nos.makedirs('/tmp/.run-only')\nopen('/tmp/.run-only/results', 'w').write('x')\nprint('\\x1e.run-only item 1')",
        "import builtins, sys\ndel builtins.display\nsys.meta_path.clear()",
    ] {
        let answer = single(&mut lab, true, &format!("{picture}{code}"));
        assert_eq!(answer["structuredContent"]["exit_code"], 0, "{code}: {answer}");
        assert_eq!(answer["structuredContent"]["stdout"], "", "{code}: {answer}");
    }
}
