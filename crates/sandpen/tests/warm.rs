//! Interpreters that were started ahead: programs cannot tell, and no two runs have anything in common.
//!
//! A table of programs is run over MCP by a server that starts interpreters ahead and by one that does not; what comes back
//! must be the same, byte for byte.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::Client;
use support::{World, is_embedded, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() || !is_embedded("interpreters that were started ahead") {
            return;
        }
    };
}

const VERSION: &str = "2025-11-25";

/// Enough for an interpreter to be there, on a machine that is not busy. On one that is, it is there a moment later, and
/// what this compares is the same.
const PAUSE: Duration = Duration::from_millis(150);

/// The same with modules imported.
const IMPORT_PAUSE: Duration = Duration::from_millis(800);

fn python(code: &str) -> Value {
    json!({ "language": "python", "code": code })
}

fn javascript(code: &str) -> Value {
    json!({ "language": "javascript", "code": code })
}

fn run(client: &mut Client, arguments: Value) -> Value {
    client.call("run_code", arguments)["structuredContent"].take()
}

/// What a caller sees, but for what is another each time.
fn seen(mut result: Value) -> Value {
    let Some(object) = result.as_object_mut() else { return result };
    object.remove("sandbox_id");
    object.remove("job_id");
    object.remove("usage");
    if let Some(artifacts) = object.get_mut("artifacts").and_then(Value::as_array_mut) {
        for artifact in artifacts {
            artifact.as_object_mut().expect("an object").remove("uri");
        }
    }
    result
}

fn programs() -> Vec<(&'static str, Value)> {
    let with = |mut arguments: Value, name: &str, value: Value| {
        arguments[name] = value;
        arguments
    };
    vec![
        ("a line", python("print(1)")),
        ("nothing", python("")),
        ("no end of line", python("print('x', end='')")),
        (
            "what a program knows of itself",
            python(
                "import sys, os\n\
                 print(sorted(globals()), __name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__)\n\
                 print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.warnoptions, sys._xoptions)\n\
                 print(os.getcwd(), os.listdir(), oct(os.umask(0)), os.getuid(), os.getgid(), os.getgroups())\n\
                 print(open('/proc/self/cmdline').read().split('\\0'))\n\
                 print(sorted(open('/proc/self/environ').read().split('\\0')))\n\
                 print(list(os.environ.items()))\n\
                 print(sorted(sys.modules))\n\
                 print(sys._getframe().f_back, sys.getrecursionlimit(), os.getpgrp() == os.getpid() == os.getsid(0))",
            ),
        ),
        (
            "its file",
            python(
                "import os, stat\ns = os.stat(__file__)\n\
                 print(oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, s.st_size, open(__file__).read())",
            ),
        ),
        (
            "descriptors, signals and limits",
            python(
                "import os, signal, resource\n\
                 print(sorted(os.listdir('/proc/self/fd')), [os.get_inheritable(n) for n in range(3)])\n\
                 print([os.fstat(n).st_mode for n in range(3)], [os.get_blocking(n) for n in range(3)])\n\
                 print({s.name: str(signal.getsignal(s)) for s in signal.Signals}, signal.pthread_sigmask(0, []))\n\
                 print([resource.getrlimit(n) for n in range(16)])\n\
                 words = 'Sig', 'Cap', 'Seccomp:', 'NoNew', 'Umask'\n\
                 print([line for line in open('/proc/self/status') if line.startswith(words)])",
            ),
        ),
        ("a traceback", python("def f(x):\n    return 1 / x\n\ndef g():\n    f(0)\n\ng()")),
        ("a traceback within a traceback", python("try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')")),
        ("too deep", python("def f(n):\n    return f(n + 1)\n\nf(0)")),
        ("stack and frames", python("import traceback, inspect\ntraceback.print_stack()\nprint(len(inspect.stack()))")),
        ("wrong syntax", python("print(1)\nx = = 2")),
        ("wrong indentation", python("if True:\nprint(1)")),
        ("an open string", python("print('a\n")),
        ("an open bracket at the end", python("print((1,")),
        ("a null byte", python("print(1)\0")),
        ("a mark of byte order", python("\u{feff}print('é')")),
        ("letters", python("print('åß∂ 漢字 🎈'); print(ascii('é'))")),
        ("a declared encoding", python("# -*- coding: latin-1 -*-\nprint(ascii('é'))")),
        ("a declared usual encoding", python("# coding: utf-8\nprint(ascii('é'))")),
        ("an encoding that is none", python("# coding: nonsense\nprint(1)")),
        ("ends of line of another system", python("print(1)\r\nif 1:\r\n    print(2)\r\n")),
        ("a code", python("import sys; sys.exit(7)")),
        ("a message as code", python("import sys; sys.exit('why')")),
        ("no code", python("import sys; sys.exit(None)")),
        ("exit without ado", python("import os; print('lost', end=''); os._exit(3)")),
        ("a signal", python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")),
        ("an interrupt", python("import os, signal; os.kill(os.getpid(), signal.SIGINT)")),
        ("abort", python("import os; os.abort()")),
        (
            "what is done at the end",
            python(
                "import atexit, threading, time, sys\n\
                 atexit.register(lambda: print('atexit'))\n\
                 class D:\n    def __del__(self): print('del', flush=True)\n\
                 d = D()\n\
                 f = open('never-closed.txt', 'w'); f.write('kept')\n\
                 def late():\n    time.sleep(0.1); print('thread')\n\
                 threading.Thread(target=late).start()\n\
                 sys.stdout.write('main\\n')",
            ),
        ),
        ("a broken end", python("import atexit; atexit.register(print, nothing=1); print(1)")),
        (
            "processes that import it again",
            python(
                "import multiprocessing as m\n\
                 def f(x): return x * x\n\
                 if __name__ == '__main__':\n    m.set_start_method('spawn')\n    with m.Pool(1) as p: print(p.map(f, range(5)))\n\
                 else: print(__name__)",
            ),
        ),
        (
            "processes that are forked",
            python("import os\nif os.fork() == 0:\n    print('child'); os._exit(0)\nos.wait(); print('parent')"),
        ),
        (
            "a program of its own",
            python(
                "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'], capture_output=True, text=True).stdout)",
            ),
        ),
        (
            "its source",
            python("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getsourcefile(f))"),
        ),
        ("input", with(python("import sys\nprint(sys.stdin.read().upper())"), "stdin", json!("a\nb\n"))),
        ("no input", python("import sys\nprint(repr(sys.stdin.read()))")),
        ("much output", python("for i in range(20000): print(i)")),
        ("both streams", python("import sys\nprint('out'); print('err', file=sys.stderr)")),
        ("a closed stream", python("import sys\nsys.stdout.close()")),
        ("arguments", with(python("import sys; print(sys.argv)"), "args", json!(["a b", "--c"]))),
        (
            "variables",
            with(python("import os; print(list(os.environ.items()))"), "env", json!({ "A": "b", "TZ": "Asia/Tokyo" })),
        ),
        (
            "a variable that is read at the start",
            with(python("import sys; print(sys.flags.optimize)"), "env", json!({ "PYTHONOPTIMIZE": "2" })),
        ),
        ("a directory", with(python("import os, sys; print(os.getcwd(), sys.path[0])"), "cwd", json!("/tmp"))),
        (
            "a module beside it",
            with(
                python("import random; print(random.mine)"),
                "files",
                json!([{ "path": "random.py", "content": "mine = 1" }]),
            ),
        ),
        (
            "a module at the start",
            with(
                python("import site, sys; print('usercustomize' in sys.modules)"),
                "files",
                json!([{ "path": "usercustomize.py", "content": "print('never')" }]),
            ),
        ),
        ("too long for a pipe", python(&format!("print(1)\n{}", "# padding\n".repeat(3000)))),
        ("the most that is sent along", python(&format!("{:<16384}", "print(2)"))),
        ("an artifact", python("open('made.txt', 'w').write('x')")),
        ("its time", with(python("import time\nprint('before', flush=True)\ntime.sleep(60)"), "timeout_s", json!(1.5))),
        ("memory", python("x = bytearray(2 << 30)\nx[::4096] = b'x' * len(x[::4096])")),
        (
            "a module that takes long",
            python("import numpy, sys\nprint(numpy.arange(3).sum(), sorted(sys.modules), sys.path)"),
        ),
        (
            "modules, and what is left of their import",
            python(
                "import os, sys\nimport numpy as np, pandas as pd\n\
                 print(os.environ.get('PYTHONPATH'), sorted(os.listdir('/proc/self/fd')), os.listdir('/tmp'), os.listdir())\n\
                 print(np.__spec__.origin, pd.__file__, sys.argv, sorted(sys.path_importer_cache.keys() - sys.path), sys._getframe().f_back)\n\
                 print(pd.DataFrame({'a': [1, 2]}).sum(), __file__, sorted(globals()))",
            ),
        ),
        ("a module that is not there", python("import polars_of_nobody, numpy")),
        ("a module that is known and not there", python("import sys, duckdb\nprint(1)")),
        ("a traceback in a module", python("import numpy as np\nnp.zeros(3).reshape(2, 2)")),
        ("a name that a module lacks", python("from numpy import nothing_of_the_kind")),
        (
            "a module beside modules that are known",
            with(
                python("import numpy\nprint(numpy.mine)"),
                "files",
                json!([{ "path": "numpy.py", "content": "mine = 1" }]),
            ),
        ),
        ("a line of script", javascript("console.log(1)")),
        ("a script that throws", javascript("function f() { throw new Error('x') }\nf()")),
        (
            "what a script knows of itself",
            javascript(
                "console.log(process.argv, __filename, __dirname, require.main === module, process.cwd(), process.execArgv, process.umask())\n\
                 console.log(Object.entries(process.env), module.paths, process.title)\n\
                 console.log(new Error('here').stack)",
            ),
        ),
        ("wrong syntax in a script", javascript("let x = = 1")),
        (
            "modules in a script",
            javascript("import fs from 'fs'\nconsole.log(import.meta.url, typeof fs.readFileSync)"),
        ),
        ("a promise that fails", javascript("Promise.reject(new Error('later'))")),
        (
            "the end of a script",
            javascript("process.on('exit', code => console.log('exit', code)); process.exitCode = 4"),
        ),
        (
            "input of a script",
            with(javascript("process.stdin.on('data', d => console.log(String(d)))"), "stdin", json!("word")),
        ),
    ]
}

#[test]
fn programs_cannot_tell_whether_their_interpreter_was_started_ahead() {
    needs_sandboxes!();
    let (warm_world, cold_world) = (World::new(), World::new());
    let mut warm = Client::hello(&warm_world, &[], VERSION);
    let mut cold = Client::hello(&cold_world, &["--no-warm"], VERSION);
    for code in [python("print(1)"), javascript("console.log(1)")] {
        run(&mut warm, code);
    }
    let mut different = Vec::new();
    for (name, arguments) in programs() {
        if name.contains("module") {
            // Those of its kind are made after the first.
            run(&mut warm, arguments.clone());
            std::thread::sleep(IMPORT_PAUSE);
        }
        std::thread::sleep(PAUSE);
        let (ahead, asked) = (seen(run(&mut warm, arguments.clone())), seen(run(&mut cold, arguments)));
        if ahead != asked {
            different.push(format!("{name}\n  ahead {ahead}\n  asked {asked}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Besides the clock, this alone tells: one that was begun ahead asks before it ends, by a filter.
#[test]
fn the_number_of_filters_tells_that_an_interpreter_was_started_ahead() {
    needs_sandboxes!();
    let (warm_world, cold_world) = (World::new(), World::new());
    let mut warm = Client::hello(&warm_world, &[], VERSION);
    let mut cold = Client::hello(&cold_world, &["--no-warm"], VERSION);
    let filters =
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp_filters:')][0])";
    assert_eq!(run(&mut cold, python(filters))["stdout"], "1\n");
    let asks = (0..20).any(|_| {
        std::thread::sleep(PAUSE);
        run(&mut warm, python(filters))["stdout"] == "2\n"
    });
    assert!(asks, "none asked before it ended");
    // Whoever ends in another way, or leaves others behind, is told as ever.
    for (code, expected) in [
        ("import os\nos._exit(7)", json!({ "exit_code": 7 })),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", json!({ "signal": 9 })),
        ("import subprocess\nsubprocess.Popen('sleep 0.2; echo late', shell=True)", json!({ "stdout": "late\n" })),
        (
            "import threading, time, os\nthreading.Thread(target=lambda: os._exit(9)).start()\ntime.sleep(9)",
            json!({ "exit_code": 9 }),
        ),
        ("print('x' * 9000)", json!({ "stdout": format!("{}\n", "x".repeat(9000)) })),
    ] {
        std::thread::sleep(PAUSE);
        let result = run(&mut warm, python(code));
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(result[name], *value, "{code}: {result}");
        }
    }
}

/// Whether a module is in the sandbox.
fn has(client: &mut Client, module: &str) -> bool {
    let found = run(client, python(&format!("import {module}")))["exit_code"] == 0;
    if !found {
        crate::support::skip(&format!("the image has no {module}"));
    }
    found
}

/// What was there before the code is kept from the collector; nothing else tells.
const IMPORTED_AHEAD: &str = "import numpy, gc\nprint(all(known is not numpy.__dict__ for known in gc.get_objects()))";

#[test]
fn modules_are_imported_ahead_where_code_imports_them_first() {
    needs_sandboxes!();
    let (world, cold_world) = (World::new(), World::new());
    let mut client = Client::hello(&world, &[], VERSION);
    if !has(&mut client, "numpy") {
        return;
    }
    let was_ahead = (0..20).any(|_| {
        std::thread::sleep(Duration::from_secs(1));
        run(&mut client, python(IMPORTED_AHEAD))["stdout"] == "True\n"
    });
    assert!(was_ahead, "nothing was imported ahead");
    // Not where something comes before it.
    for _ in 0..2 {
        let later = run(&mut client, python(&format!("x = 1\n{IMPORTED_AHEAD}")));
        assert_eq!(later["stdout"], "False\n", "{later}");
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut cold = Client::hello(&cold_world, &["--no-warm"], VERSION);
    for _ in 0..2 {
        assert_eq!(run(&mut cold, python(IMPORTED_AHEAD))["stdout"], "False\n");
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn interpreters_that_imported_ahead_have_nothing_in_common() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    if !has(&mut client, "numpy") {
        return;
    }
    let code = "import numpy, random, uuid, ssl, tempfile\n\
                print(hash('word'), id(numpy), random.random(), numpy.random.rand(), numpy.random.default_rng().random(), uuid.uuid4(),\n\
                      ssl.RAND_bytes(8).hex(), tempfile.mktemp(), sep='\\n')";
    const RUNS: usize = 4;
    let mut seen: Vec<BTreeSet<String>> = vec![BTreeSet::new(); 8];
    for _ in 0..RUNS {
        let result = run(&mut client, python(code));
        let text = result["stdout"].as_str().unwrap_or_default().to_owned();
        assert_eq!(text.lines().count(), seen.len(), "{result}");
        for (values, line) in seen.iter_mut().zip(text.lines()) {
            values.insert(line.to_owned());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(seen.iter().all(|values| values.len() == RUNS), "{seen:?}");
}

/// How long ago the interpreter of a run was started, in hundredths of a second, as the run sees it.
const AGE: &str =
    "print(float(open('/proc/uptime').read().split()[0]) * 100 - int(open('/proc/self/stat').read().split()[21]))";

fn age(client: &mut Client) -> f64 {
    let result = run(client, python(AGE));
    result["stdout"].as_str().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| panic!("{result}"))
}

#[test]
fn interpreters_are_started_ahead_unless_it_is_forbidden() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    let mut ages = Vec::new();
    let was_ahead = (0..20).any(|_| {
        ages.push(age(&mut client));
        std::thread::sleep(Duration::from_millis(600));
        ages.last().is_some_and(|age| *age > 50.0)
    });
    assert!(was_ahead, "{ages:?}");
    assert!(ages[0] < 1000.0, "{ages:?}");

    let world = World::new();
    let mut client = Client::hello_with(&world, &[], VERSION, |command| {
        command.env("SANDPEN_NO_WARM", "true");
    });
    run(&mut client, python("print(1)"));
    std::thread::sleep(Duration::from_secs(2));
    let kept = client.processes().into_iter().filter(|process| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(".run-")
    });
    assert_eq!(kept.count(), 0, "an interpreter waits although none may");
}

#[test]
fn no_two_runs_have_anything_in_common() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    let code = "import os, random, uuid, ssl, tempfile, secrets\n\
                print(hash('word'), id(object()), random.random(), uuid.uuid4(), ssl.RAND_bytes(8).hex(),\n\
                      tempfile.mktemp(), secrets.token_hex(8), os.urandom(8).hex(), uuid.uuid1().clock_seq, sep='\\n')";
    let names = ["hash", "address", "random", "uuid4", "ssl", "tempfile", "secrets", "urandom"];
    let mut seen: Vec<BTreeSet<String>> = vec![BTreeSet::new(); names.len()];
    const RUNS: usize = 5;
    for _ in 0..RUNS {
        let result = run(&mut client, python(code));
        let text = result["stdout"].as_str().unwrap_or_default().to_owned();
        assert!(text.lines().count() > names.len(), "{result}");
        for (values, line) in seen.iter_mut().zip(text.lines()) {
            values.insert(line.to_owned());
        }
        std::thread::sleep(PAUSE);
    }
    for (name, values) in names.iter().zip(&seen) {
        assert_eq!(values.len(), RUNS, "{name}: {values:?}");
    }
    let listing = run(&mut client, python("import os; print(sorted(os.listdir('/workspace') + os.listdir('/tmp')))"));
    assert_eq!(listing["stdout"], "['.run-only.py']\n", "{listing}");
}

#[test]
fn a_server_that_ends_leaves_no_interpreter_behind() {
    needs_sandboxes!();
    for gently in [true, false] {
        let world = World::new();
        let mut client = Client::hello(&world, &[], VERSION);
        run(&mut client, python("print(1)"));
        std::thread::sleep(Duration::from_millis(500));
        let processes = client.processes();
        assert!(processes.len() > 1, "spares wait: {processes:?}");
        if gently {
            client.close_stdin();
        } else {
            client.signal(rustix::process::Signal::KILL);
        }
        client.wait();
        support::wait_until("all of it has ended", || !processes.iter().any(|process| support::is_running(*process)));
    }
}

/// What an image does whenever Python starts in it: it sleeps for as long as it likes.
const SLEEPS: &str = "import os\nos.system('sleep 7771')\n";

/// The same, but it works, and has a timer wake it whenever it was stopped. Without a handler the kernel would give up the timer.
const WAKES_ITSELF: &str = "import ctypes, signal\n\
    class Event(ctypes.Structure):\n\
    \x20   _fields_ = [('value', ctypes.c_void_p), ('signal', ctypes.c_int), ('way', ctypes.c_int), ('rest', ctypes.c_char * 48)]\n\
    timer, every = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 200000000, 0, 200000000)\n\
    libc = ctypes.CDLL(None)\n\
    signal.signal(signal.SIGCONT, lambda *_: None)\n\
    assert libc.timer_create(1, ctypes.byref(Event(None, 18, 0, b'')), ctypes.byref(timer)) == 0\n\
    assert libc.timer_settime(timer, 0, every, None) == 0\n\
    while True: pass\n";

/// An image with this in the start of its Python, as a caller would make it.
fn plant(client: &mut Client, name: &str, code: &str) -> Value {
    let made = client.call("create_sandbox", json!({}));
    let sandbox = made["structuredContent"]["sandbox_id"].clone();
    let writes = "import os, site, sys\n\
        directory = site.getusersitepackages()\n\
        os.makedirs(directory)\n\
        open(directory + '/usercustomize.py', 'w').write(sys.stdin.read())";
    let argv = json!(["python3", "-c", writes]);
    let done = client.call("run_command", json!({ "sandbox_id": sandbox, "argv": argv, "stdin": code }));
    assert_eq!(done["structuredContent"]["exit_code"], 0, "{done}");
    client.call("save_sandbox", json!({ "sandbox_id": sandbox, "name": name }));
    client.call("stop_sandbox", json!({ "sandbox_id": sandbox }));
    json!({ "language": "python", "code": "print(1)", "image": format!("saved:{name}"), "timeout_s": 2 })
}

/// The states of the processes with this in their command, one letter each.
fn states(client: &Client, word: &str) -> Vec<char> {
    let is_meant = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    let state = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    client.processes().into_iter().filter(is_meant).filter_map(state).collect()
}

#[test]
fn an_image_does_nothing_for_nobody() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    let in_image = plant(&mut client, "planted", SLEEPS);
    assert_eq!(run(&mut client, in_image.clone())["status"], "timed_out", "it runs where it was asked for");
    support::wait_until("all of it is stopped", || {
        let states = states(&client, "7771");
        !states.is_empty() && states.iter().all(|state| *state == 'T')
    });
    assert_eq!(run(&mut client, in_image)["status"], "timed_out", "it goes on where it is asked for");
}

#[test]
fn what_wakes_itself_for_nobody_is_ended() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    let in_image = plant(&mut client, "awake", WAKES_ITSELF);
    assert_eq!(run(&mut client, in_image.clone())["status"], "timed_out", "it runs where it was asked for");
    // The script's own name is in the command of every interpreter that waits for it.
    support::wait_until("it runs for nobody, too", || states(&client, ".run-").contains(&'R'));
    // A stop takes along a signal that was sent and not heard, and with that the timer that sent it: then it does stand still.
    let is_ended = (0..4).any(|_| {
        let begun = Instant::now();
        while !states(&client, ".run-").is_empty() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(100));
        }
        states(&client, ".run-").is_empty() || {
            run(&mut client, in_image.clone());
            false
        }
    });
    assert!(is_ended, "it runs on: {:?}", states(&client, ".run-"));
    assert_eq!(run(&mut client, in_image)["status"], "timed_out", "the image is of use all the same");
}

#[test]
fn what_keeps_still_is_there_however_long_it_waits() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], VERSION);
    run(&mut client, python("print(1)"));
    // Stopped after five seconds, and looked at thrice.
    std::thread::sleep(Duration::from_secs(22));
    let age = age(&mut client);
    assert!(age > 1500.0, "the interpreter was started {age} hundredths of a second before");
}
