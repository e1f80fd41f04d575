"""Read by the interpreter of a single run before its script, in the place of `sitecustomize`, and gone before that begins.

Short, because every run compiles it: what only some need is text until then.
"""

import builtins
import os
import sys

HERE = __file__.rpartition("/")[0]
MODULES = "{modules}".split()
AHEAD = "{ahead}"
DISPLAY = "{display}"
# Modules that draw.
WATCHED = ("matplotlib.figure", "matplotlib.pyplot", "plotly.basedatatypes", "PIL.Image")


class Watch:
    def find_spec(self, name, path=None, target=None):
        return load()["WHEN_IMPORTED"].find_spec(name, path, target) if name in WATCHED else None


def display(*values):
    """Show values as a notebook would: figures, images, tables, pages; anything else as its repr."""
    load()["DISPLAY"].show(*values)


def load():
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not Watch]
    names = {"__name__": "display"}
    exec(compile(DISPLAY, "<display>", "exec"), names)
    names["install_for_run"](HERE, STDOUT)
    return names


def keep_from_collector():
    """What is there now lives as long as the interpreter. To look for garbage among it is most of what its end would take."""
    was_there = "gc" in sys.modules
    import gc

    gc.freeze()
    if not was_there:
        del sys.modules["gc"]


try:
    STDOUT = os.fstat(1)[1:3]
except OSError:
    STDOUT = None
path, more, rest = os.environ.pop("PYTHONPATH", "").partition(":")
if more:
    os.environ["PYTHONPATH"] = rest
sys.path[:] = [path for path in sys.path if path != HERE]
sys.path_importer_cache.pop(HERE, None)
del sys.modules[__name__]
if DISPLAY:
    sys.meta_path.insert(0, Watch())
    builtins.display = display
try:
    # The one that would have been there; without one this ends as if there had been none.
    import sitecustomize
finally:
    if MODULES:
        exec(compile(AHEAD, __file__, "exec"))
    keep_from_collector()
    try:
        os.unlink(__file__)
        os.rmdir(HERE)
    except OSError:
        pass
