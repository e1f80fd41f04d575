"""A live Python: takes code on what was its standard input, runs it, and says when it is done.

Asked by a line `run TOKEN NUMBER LENGTH` and so many bytes of code; answers by marks in its own output, a record
separator, the token and a word, so that what was printed before is known to have come before.
"""

import ast
import linecache
import signal
import traceback
import types

HERE = __file__
MOST_RESULT = 32 * 1024
# A coroutine that code at the top level awaits something in.
IS_COROUTINE = 0x80


class Broken(Exception):
    """Our own descriptors are gone: there is nobody to talk to."""


class Channel:
    """The ends that are ours, under numbers that programs do not use by accident and children do not have."""

    def __init__(self, streams=None):
        import fcntl

        above = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 200) for number in streams or (0, 1, 2)]
        self.requests, self.stdout, self.stderr = above
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        if streams:
            os.dup2(self.stdout, 1)
            os.dup2(self.stderr, 2)
            for number in streams:
                os.close(number)
        self.waiting = b""

    def numbers(self):
        return self.requests, self.stdout, self.stderr

    def read(self, most):
        while True:
            try:
                return os.read(self.requests, most)
            except InterruptedError:
                continue
            except OSError as error:
                raise Broken from error

    def line(self):
        while b"\n" not in self.waiting:
            more = self.read(4096)
            if not more:
                return None
            self.waiting += more
        line, self.waiting = self.waiting.split(b"\n", 1)
        return line.decode()

    def exactly(self, length):
        parts, have = [self.waiting], len(self.waiting)
        while have < length:
            more = self.read(min(length - have, 1 << 20))
            if not more:
                raise Broken
            parts.append(more)
            have += len(more)
        whole = b"".join(parts)
        body, self.waiting = whole[:length], whole[length:]
        return body

    def open_again(self):
        """What an earlier run has closed. What it has led elsewhere stays so."""
        for number, ours in ((1, self.stdout), (2, self.stderr)):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(ours, number)

    def mark(self, number, token, words):
        """Short enough to be written in one piece, whoever else writes there."""
        text = f"\x1e{token} {words}\n".encode()
        try:
            while text:
                text = text[os.write(number, text) :]
        except OSError as error:
            raise Broken from error


class Interpreter:
    def __init__(self, channel, base):
        self.channel = channel
        self.base = base
        self.process = os.getpid()
        self.running = False
        self.loop = None
        self.branches = []
        self.relay = None
        main = types.ModuleType("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.names = main.__dict__
        sys.argv = [""]
        # Beside the code of a single run are its own modules; here that is where the interpreter was started.
        sys.path[0] = ""

    def interrupted(self, *_):
        # Between two runs there is nothing to interrupt.
        if self.running and os.getpid() == self.process:
            raise KeyboardInterrupt

    def serve(self):
        while True:
            line = self.channel.line()
            if line is None:
                return
            verb, token, number, length = line.split(" ")
            body = self.channel.exactly(int(length))
            if verb == "run":
                self.run(token, int(number), body)
            elif verb == "fork":
                self.fork(token, body)
            else:
                raise Broken

    def fork(self, token, body):
        """A branch for each line: the address of its relay, where its results go, and where a copy of the files goes, if any."""
        channel = self.channel
        self.reap()
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        lines = [line.split("\t") for line in body.decode().splitlines()]
        children, exit_code = [], 0
        try:
            for _, _, directory in lines:
                if directory:
                    copy_directory(os.getcwd(), directory)
            for address, base, directory in lines:
                child, handed = branch_off(address, channel.numbers())
                if not child:
                    self.become(handed, base, directory)
                    return
                children.append(child)
        except Refused as refused:
            for child in children:
                os.kill(child, signal.SIGKILL)
            os.write(channel.stderr, f"{refused}\n".encode())
            exit_code = 1
        self.branches += children
        channel.mark(channel.stderr, token, "done")
        channel.mark(channel.stdout, token, f"done {exit_code} 0 0")

    def become(self, handed, base, directory):
        """From here on this is another interpreter, which has only the variables of the one before."""
        self.relay, streams = handed
        self.channel = Channel(streams)
        self.base = base
        self.process = os.getpid()
        self.branches = []
        # Its selector is shared with the one before.
        self.loop = None
        if directory:
            os.chdir(directory)
        reseed()

    def reap(self):
        """Branches that have ended; children of the code are its own affair."""
        still = []
        for child in self.branches:
            try:
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    still.append(child)
            except ChildProcessError:
                pass
        self.branches = still

    def run(self, token, number, code):
        channel = self.channel
        sink = Sink(f"{self.base}/{number}", lambda item: channel.mark(channel.stdout, token, f"item {item}"))
        install(sink)
        channel.open_again()
        self.reap()
        before = os.times()
        signal.signal(signal.SIGINT, self.interrupted)
        exit_code = self.guarded(number, code, sink)
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        if os.getpid() != self.process:
            # A child that the code forked, and that came to the end of it.
            os._exit(exit_code)
        after = os.times()
        cpu = sum(after[:4]) - sum(before[:4])
        channel.mark(channel.stderr, token, "done")
        channel.mark(channel.stdout, token, f"done {exit_code & 0xFF} {int(cpu * 1000)} {peak()}")

    def guarded(self, number, code, sink):
        """The exit code of a run, whatever the code does."""
        try:
            self.running = True
            try:
                exit_code = self.execute(number, code, sink)
                finish()
            finally:
                self.running = False
            return exit_code
        except Broken:
            raise
        except SystemExit as exit:
            return self.exited(exit)
        except KeyboardInterrupt as error:
            self.tell(error)
            return 130
        except BaseException as error:
            self.tell(error)
            return 1

    def execute(self, number, code, sink):
        name = f"<run {number}>"
        text = code.decode()
        # Lines of a traceback are looked up here; without a time they are never thought to be old.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        tree = compile(text, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            self.evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is not None:
            value = self.evaluate(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if value is not None:
                self.names["_"] = value
                self.result(value, sink)
        return 0

    def evaluate(self, code):
        if not code.co_flags & IS_COROUTINE:
            return eval(code, self.names)
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(types.FunctionType(code, self.names)())

    def result(self, value, sink):
        text = repr(value)
        role = "displayed" if DISPLAY.show_rich(value, "display") else "result"
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        sink.put(role, "text/plain", cut(text.encode("utf-8", "replace"), MOST_RESULT))

    def exited(self, exit):
        code = exit.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xFF
        print(code, file=sys.stderr)
        return 1

    def tell(self, error):
        """As the interpreter itself would, without our own part in it."""
        try:
            shown = traceback.TracebackException.from_exception(error)
            without_ours(shown)
            text = "".join(shown.format())
        except BaseException as other:
            text = f"{type(error).__name__} (which cannot be shown: {type(other).__name__})\n"
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except BaseException:
            # The code has taken it away or broken it.
            os.write(self.channel.stderr, text.encode("utf-8", "replace"))


def without_ours(shown):
    ours = [shown]
    while ours:
        one = ours.pop()
        one.stack[:] = [frame for frame in one.stack if frame.filename != HERE]
        ours += [other for other in (one.__cause__, one.__context__) if other is not None]
        ours += getattr(one, "exceptions", None) or []


def peak():
    """The largest resident set so far, in KiB."""
    try:
        import resource

        return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    except ImportError:
        return 0


def live():
    try:
        os.unlink(HERE)
    except OSError:
        pass
    try:
        Interpreter(Channel(), sys.argv[1]).serve()
        # Whoever asked is gone, and this is about to be killed with all that it started. To end by itself would spare that.
        signal.sigtimedwait([], 30)
    except Broken:
        try:
            os.write(2, b"[the code has closed what its context is driven by]\n")
        finally:
            os._exit(70)


live()
