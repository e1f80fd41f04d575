"""Imports what the code will import first, while nobody waits for it: there is a pipe in the place of the script.

Nobody may see a difference. What is written or fails on the way is undone by starting anew, without importing anything, and is
left to the code.
"""


def import_ahead():
    script, plain = getattr(sys, "argv", [""])[0], HERE + "/plain"
    if os.path.exists(plain):
        os.unlink(plain)
    elif os.stat(script).st_mode & 0o170000 == 0o010000 and not all_imported(script):
        start_anew(plain)


def start_anew(plain):
    try:
        with open("/proc/self/cmdline", "rb") as line:
            words = line.read().split(b"\0")[:-1]
        os.close(os.open(plain, os.O_WRONLY | os.O_CREAT, 0o600))
        os.environ["PYTHONPATH"] = ":".join([HERE] + [rest] * bool(more))
        os.execv(sys.executable, words)
    except OSError:
        os._exit(1)


def all_imported(script):
    """Whether that was possible without a word."""
    said = os.open(HERE + "/said", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.unlink(HERE + "/said")
    streams = [(number, os.dup(number)) for number in (1, 2)]
    for number, _ in streams:
        os.dup2(said, number)
    # As they would be found from the script.
    beside = [] if getattr(sys.flags, "safe_path", False) else [script.rpartition("/")[0]]
    sys.path[:0] = beside
    try:
        for name in MODULES:
            if any(finder.find_spec(name.partition(".")[0], None) for finder in sys.meta_path):
                # Warnings are told or not by who imports. A name that is no file: they would quote the line, and read the pipe.
                exec(compile("import " + name, "<ahead>", "exec"), {"__name__": "__main__"})
        collect()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return os.fstat(said).st_size == 0
    except BaseException:
        return False
    finally:
        del sys.path[: len(beside)]
        for number, stream in streams:
            os.dup2(stream, number)
            os.close(stream)
        os.close(said)


def collect():
    """What importing has left over is not kept."""
    was_there = "gc" in sys.modules
    import gc

    gc.collect()
    if not was_there:
        del sys.modules["gc"]


try:
    import_ahead()
except OSError:
    # Before anything was imported.
    pass
