"""Results that are more than text: figures, images, tables and pages, in the order in which they were shown.

Used by live contexts and by single runs alike: `install(sink)` before the code, `finish()` after it. Nothing is imported
for it that the code has not imported itself.

A sink writes below a directory of its own: `results` has a record for each, a line `ROLE MIME BYTES inline|file` and then,
when inline, so many bytes and a line break. What is not inline is a file beside it, by its number and its kind.
"""

import builtins
import os
import sys

HOME = os.getcwd()
MOST_ITEMS = 32
MOST_TEXT = 32 * 1024
MOST_TEXT_OF_ALL = 160 * 1024
MOST_FILE = 16 << 20
# Larger images are linked instead of shown, so a figure is drawn once more, smaller.
SHOWN_IMAGE = 1 << 20
MOST_ROWS = 40
MOST_COLUMNS = 20

ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "text/html": "html",
}


class Sink:
    """Where results go. `mark(number)` is called for each, so that its place in the text is known."""

    def __init__(self, directory, mark):
        self.directory = directory
        self.mark = mark
        self.items = 0
        self.text = 0

    def put(self, role, mime, body):
        if self.items == MOST_ITEMS:
            return
        if self.items == MOST_ITEMS - 1 and role == "display":
            role, mime, body = "display", "text/plain", b"[more was displayed than is kept of one run]"
        ending = ENDINGS.get(mime)
        if ending and len(body) > MOST_FILE:
            note = f"[a result of {len(body)} bytes is too large to keep: write it to a file instead]"
            mime, ending, body = "text/plain", None, note.encode()
        if not ending:
            body = cut(body, min(MOST_TEXT, max(MOST_TEXT_OF_ALL - self.text, 0)))
            self.text += len(body)
        if not self.items:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
        number = self.items + 1
        if ending:
            with open(f"{self.directory}/{number}.{ending}", "wb") as file:
                file.write(body)
        head = f"{role} {mime} {len(body)} {'file' if ending else 'inline'}\n".encode()
        with open(f"{self.directory}/results", "ab") as file:
            file.write(head if ending else head + body + b"\n")
        self.items = number
        self.mark(number)


def cut(body, most):
    if len(body) <= most:
        return body
    kept = body[:most].decode("utf-8", "ignore")
    return f"{kept}\n[… {len(body) - most} bytes left out …]".encode()


class RunSink(Sink):
    """Of a single run, by the directory that was made for it."""

    def __init__(self, directory, stdout):
        super().__init__(directory, self.mark_stdout)
        self.token = directory.rpartition("/")[2]
        self.process = os.getpid()
        self.stdout = stdout

    def put(self, role, mime, body):
        # Of those that the code has forked, none knows how many results there are.
        if os.getpid() == self.process:
            super().put(role, mime, body)

    def mark_stdout(self, number):
        # What the code has led elsewhere is its own. A result without a mark comes after those that have one.
        try:
            if os.fstat(1)[1:3] == self.stdout:
                os.write(1, f"\x1e{self.token} item {number}\n".encode())
        except OSError:
            pass


class Display:
    def __init__(self):
        self.sink = None
        self.at_end = False

    def show(self, *values):
        """Show values as a notebook would: figures, images, tables, pages; anything else as its repr."""
        for value in values:
            if not self.show_rich(value, "display"):
                print(value if isinstance(value, str) else repr(value))

    def show_rich(self, value, role):
        """Whether there was more than text to it."""
        found = rich(value)
        if found is None:
            return False
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        if self.sink is not None:
            self.sink.put(role, *found)
        return True

    def show_figures(self):
        """All figures that are open, which are closed then: what is drawn next is a new one."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if helpers is None:
            return
        for manager in list(helpers.Gcf.get_all_fig_managers()):
            if not is_saved(manager.canvas.figure):
                self.show_rich(manager.canvas.figure, "display")
        helpers.Gcf.destroy_all()

    def finish(self):
        self.show_figures()


DISPLAY = Display()


def install(sink):
    """Show results at `sink` from now on."""
    DISPLAY.sink = sink
    if getattr(builtins, "display", None) != DISPLAY.show:
        builtins.display = DISPLAY.show
        for name, patch in PATCHES.items():
            if name in sys.modules:
                patch(sys.modules[name])
        if WHEN_IMPORTED not in sys.meta_path:
            sys.meta_path.insert(0, WHEN_IMPORTED)


def install_for_run(directory, stdout):
    """The same for an interpreter that ends with its run. `stdout`: what that is, by its inode and device."""
    DISPLAY.at_end = True
    install(RunSink(directory, stdout))


def finish():
    """What is still to be shown at the end of a run."""
    DISPLAY.finish()


def finish_run():
    if os.getpid() != DISPLAY.sink.process:
        return
    try:
        finish()
    except Exception as error:
        # The code has not asked for it, and so cannot have failed.
        print(f"[a figure could not be shown: {type(error).__name__}: {error}]", file=sys.stderr)


def patch_pyplot(pyplot):
    if DISPLAY.at_end:
        import atexit

        # After pyplot's own, which closes all figures, and so done before it.
        atexit.register(finish_run)

    # A plain function: its owner gives it a signature.
    def show(*_arguments, **_options):
        DISPLAY.show_figures()

    pyplot.show = show


def patch_plotly(basedatatypes):
    basedatatypes.BaseFigure.show = lambda figure, *_arguments, **_options: DISPLAY.show(figure)


def patch_image(image):
    image.Image.show = lambda picture, *_arguments, **_options: DISPLAY.show(picture)


def patch_figure(figure):
    import functools

    save = figure.Figure.savefig

    @functools.wraps(save)
    def savefig(self, *arguments, **options):
        saved = save(self, *arguments, **options)
        self.stale = False
        name = arguments[0] if arguments else options.get("fname")
        self.saved_as = name if isinstance(name, (str, os.PathLike)) else None
        return saved

    figure.Figure.savefig = savefig


# What the files of a run are shown by as well.
SHOWN_FILES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def is_saved(figure):
    """Whether it comes as one of the files of the run, as it is now."""
    name = getattr(figure, "saved_as", None)
    if figure.stale or name is None:
        return False
    path = os.path.abspath(name)
    path = path if os.path.splitext(path)[1] else path + ".png"
    hidden = any(part.startswith(".") for part in path[len(HOME) :].split("/"))
    return path.startswith(HOME + "/") and not hidden and path.lower().endswith(SHOWN_FILES) and os.path.exists(path)


PATCHES = {
    "matplotlib.figure": patch_figure,
    "matplotlib.pyplot": patch_pyplot,
    "plotly.basedatatypes": patch_plotly,
    "PIL.Image": patch_image,
}


class WhenImported:
    """Patches a module once the code imports it: to look for it before would import it for everybody."""

    def find_spec(self, name, path=None, target=None):
        patch = PATCHES.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = Patching(spec.loader, patch)
                return spec
        return None


WHEN_IMPORTED = WhenImported()


class Patching:
    def __init__(self, loader, patch):
        self.loader = loader
        self.patch = patch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.patch(module)


def flush(stream):
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        pass


def rich(value):
    """The best kind that a value has beyond its repr, as (MIME type, bytes)."""
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, dict, set, type)):
        return None
    for kind in (figure_of, image_of, table_of, plotly_of, notebook_of):
        found = kind(value)
        if found is not None:
            return found
    return None


def is_of(value, module, name):
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def figure_of(value):
    if not is_of(value, "matplotlib.figure", "Figure"):
        return None
    import io

    for options in ({}, {"dpi": 60}):
        drawn = io.BytesIO()
        value.savefig(drawn, format="png", bbox_inches="tight", **options)
        if drawn.tell() <= SHOWN_IMAGE:
            break
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and hasattr(value, "number"):
        # It was shown; the end of the run must not show it again.
        pyplot.close(value)
    return "image/png", drawn.getvalue()


def image_of(value):
    if not is_of(value, "PIL.Image", "Image"):
        return None
    import io

    drawn = io.BytesIO()
    if value.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I"):
        value = value.convert("RGB")
    value.save(drawn, format="PNG")
    return "image/png", drawn.getvalue()


def table_of(value):
    if is_of(value, "pandas", "Series"):
        value = value.to_frame(value.name if value.name is not None else "")
    elif not is_of(value, "pandas", "DataFrame"):
        return None
    rows, columns = value.shape
    part = value.iloc[:, :MOST_COLUMNS]
    if rows > MOST_ROWS:
        half = MOST_ROWS // 2
        above, below = part.iloc[:half], part.iloc[-half:]
        lines = table_lines(above) + ["|" + " … |" * (len(part.columns) + 1)] + table_lines(below)[2:]
    else:
        lines = table_lines(part)
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        lines += ["", f"{rows} rows × {columns} columns"]
    return "text/markdown", "\n".join(lines).encode("utf-8", "replace")


def table_lines(frame):
    head = [""] + [cell_of(column) for column in frame.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in frame.itertuples(name=None):
        lines.append("| " + " | ".join(cell_of(cell) for cell in row) + " |")
    return lines


def cell_of(value):
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > 200:
        text = text[:200] + "…"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def plotly_of(value):
    if not is_of(value, "plotly.basedatatypes", "BaseFigure"):
        return None
    return "text/html", value.to_html(include_plotlyjs=True, full_html=True).encode()


METHODS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_html_", "text/html"),
)


def notebook_of(value):
    for method, mime in METHODS:
        found = getattr(type(value), method, None)
        body = found(value) if callable(found) else None
        # Some give what describes it besides.
        if isinstance(body, tuple) and body:
            body = body[0]
        if isinstance(body, str):
            if mime in ("image/png", "image/jpeg"):
                import base64

                body = base64.b64decode(body)
            else:
                body = body.encode("utf-8", "replace")
        if isinstance(body, (bytes, bytearray)) and body:
            return mime, bytes(body)
    return None


