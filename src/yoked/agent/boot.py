"""The first lines that a host's Python runs, whichever version it is, before there is an agent.

The controller runs `PYTHON -E -s -S -c COMMAND` on the host and sends this file, then the zipapp,
on the command's standard input. It must be valid Python 2.7 too, to say that this is too old.
"""

# ruff: noqa - the rules are those of a newer Python
import os
import stat
import sys

OLDEST = (3, 9)
# `-c` puts the current folder first: a json.py in somebody's home is not the json that we mean.
sys.path[:] = [entry for entry in sys.path if entry]


def refuse(reason):
    """Say why there can be no agent, in the line that the controller waits for."""
    sys.stdout.write("yoked-refused " + TOKEN + " " + reason + "\n")
    sys.stdout.flush()
    sys.exit(1)


def store(data, digest):
    """The folder of the agent, unpacked where it is missing; each version has its own.

    Unpacked, because Python keeps what it compiled of a folder, but not of a zip.
    """
    cache = cache_folder()
    problem = None
    # What is run from here is for us alone, the folders above it too.
    umask = os.umask(0o077)
    try:
        # A full or read-only home must not keep a machine from being looked at.
        for parent, make in (
            (os.path.join(cache, "agent"), make_below_home),
            ("/dev/shm/yoked-%d" % os.getuid(), make_among_others),
        ):
            folder = os.path.join(parent, digest)
            try:
                make(parent)
                if not os.path.isdir(folder):
                    unpack(data, parent, folder)
                return folder
            except OSError as error:
                problem = problem or error
    finally:
        os.umask(umask)
    refuse("no place for the agent: %s" % problem)


def cache_folder():
    """As yoked.paths.cache_root has it."""
    own = os.environ.get("YOKED_CACHE")
    if own:
        return os.path.abspath(os.path.expanduser(own))
    xdg = os.environ.get("XDG_CACHE_HOME") or ""
    return os.path.join(xdg if os.path.isabs(xdg) else os.path.expanduser("~/.cache"), "yoked")


def make_below_home(parent):
    """Make the cache's folder; a link to another place of ours is the person's own doing."""
    if not os.path.isabs(parent):
        raise OSError("nothing says where the home folder is")
    os.makedirs(parent, 0o700, exist_ok=True)
    if os.stat(parent).st_uid != os.getuid():
        raise OSError(parent + " belongs to somebody else")


def make_among_others(parent):
    """Make a folder where all users write: somebody may have been there first, with a link."""
    if not os.path.lexists(parent):
        os.mkdir(parent, 0o700)
    found = os.lstat(parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError(parent + " is another user's, or a link")
    os.chmod(parent, 0o700)


def unpack(data, parent, folder):
    """Unpack the agent into its folder, whole or not at all."""
    # Only now: they cost more than all else here, and mostly the agent is there already.
    import io
    import shutil
    import tempfile
    import zipfile

    temporary = tempfile.mkdtemp(dir=parent)
    try:
        zipfile.ZipFile(io.BytesIO(data)).extractall(temporary)
        sync_files(temporary)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        # Another controller may have been first.
        if not os.path.isdir(folder):
            raise


def sync_files(folder):
    """Have the files of a folder on the disk: its name must not survive a loss of power alone."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def boot(source):
    """Receive the agent and become it."""
    if sys.version_info < OLDEST:
        refuse("Python %d.%d at %s is older than 3.9" % (sys.version_info[:2] + (sys.executable,)))
    digest, size = source.readline().decode().split()
    folder = store(source.read(int(size)), digest)
    sys.path.insert(0, folder)
    try:
        from yoked.agent.__main__ import serve_standard_streams
    except (ImportError, OSError):
        if os.path.isdir(folder):
            raise
        refuse("no place for the agent: %s was removed as soon as it was made" % folder)

    serve_standard_streams(source, TOKEN)


boot(getattr(sys.stdin, "buffer", sys.stdin))
