"""Branches of a live Python: copies of this very process, each of which becomes an interpreter of its own.

A branch has the streams of a command that was started for it: a relay, which hands them over on a socket, passes on
interrupts, and is what ends the branch when it ends. The kernel sees to that, however busy the branch is; code that works
against it can take the request back.
"""

MOST_COPIED_FILES = 20_000
MOST_COPIED_BYTES = 512 << 20
RELAY_PATIENCE = 20


class Refused(Exception):
    """A branch that cannot be, with the reason for whoever asked."""


def copy_directory(source, target):
    """The files of a directory, within bounds, without what other branches have of it."""
    import shutil

    if os.path.exists(target):
        raise Refused(f"{target} is there already")
    aside = os.path.dirname(target)
    files = size = 0
    for directory, names, found in os.walk(source):
        names[:] = [name for name in names if os.path.join(directory, name) != aside]
        files += len(found) + len(names)
        for name in found:
            try:
                size += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                pass
        if files > MOST_COPIED_FILES or size > MOST_COPIED_BYTES:
            raise Refused(f"{source} is too large to be copied: share the files, or work on fewer of them")

    def left_out(directory, names):
        return [name for name in names if os.path.join(directory, name) == aside]

    try:
        os.makedirs(aside, exist_ok=True)
        shutil.copytree(source, target, symlinks=True, ignore=left_out)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise Refused(f"{source} was not copied: {error}") from error


def branch_off(address, inherited):
    """Fork. In the child: the descriptors of its relay. In the parent: the child's number, and nothing else."""
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(address), mode=0o700, exist_ok=True)
        listener.bind(address)
        listener.listen(1)
        child = os.fork()
    except OSError as error:
        listener.close()
        raise Refused(f"no branch could be made: {error.strerror}") from error
    if child:
        listener.close()
        return child, None
    # A group of its own: what interrupts or ends the other one must not touch it.
    os.setpgid(0, 0)
    for number in inherited:
        os.close(number)
    try:
        listener.settimeout(RELAY_PATIENCE)
        relay, _ = listener.accept()
        listener.close()
        os.unlink(address)
        relay.settimeout(RELAY_PATIENCE)
        _, streams, _, _ = socket.recv_fds(relay, 1, 3)
        relay.settimeout(None)
        end_with(relay)
        relay.sendall(b"%d\n" % os.getpid())
    except BaseException:
        os._exit(71)
    return 0, (relay, streams)


def end_with(relay):
    """Let the kernel kill this process and its group once the relay is gone."""
    import fcntl

    fcntl.fcntl(relay, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(relay, fcntl.F_SETSIG, 9)
    fcntl.fcntl(relay, fcntl.F_SETFL, fcntl.fcntl(relay, fcntl.F_GETFL) | os.O_ASYNC)


def reseed():
    """Two branches must not draw the same numbers."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()
    uuid = sys.modules.get("uuid")
    if uuid is not None and hasattr(uuid, "_last_timestamp"):
        uuid._last_timestamp = None


