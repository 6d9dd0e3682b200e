"""What the program here asks of each host: variables, files, programs, libraries, ports, names.

Of its sources alone, by their syntax trees: nothing of it is run. A text counts where a call takes
it, so that one in a message or a docstring is nothing; paths.py says what a path's expression
comes to.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from yoked.doctor.paths import ANY_ABOVE, PROGRAM, Paths, called, first_text

# In the place of a name that is made up anew each time; and of a folder that nobody knows.
NEW, _UNKNOWN = "NEW", "?"
_SHARED = "/dev/shm/"  # noqa: S108 - a program's own words
# These are another on each host, as they should be.
_OF_A_HOST = ("/proc", "/sys", "/dev/", "/run/", "/var/run/", "/var/log/")
# Kinds that a host is asked for by these very names.
_AS_THEY_ARE = ("creates", "above", "programs", "libraries", "ports", "hosts", "hub", "torch_hub",
                "nltk")  # fmt: skip
# By kind and by name, where the program asks for it, as FILE:LINE.
Asks = dict[str, dict[str, str]]

MOST_ASKED, _LONGEST = 48, 200
# Half a second's work; a program's own files come before those that they import.
_MOST_CHARS = 400_000
_PORT_LIMIT = 65_536
_READS = re.compile(
    r"open|load\w*|read\w*|listdir|scandir|walk|i?glob|rglob|iterdir|memmap|fromfile|genfromtxt"
    r"|imread|exists|isfile|isdir|is_file|is_dir|getsize|getmtime|stat|File|\w*Folder|\w*Dataset"
    r"|from_file|from_pretrained|connect|SentencePieceProcessor"
)
# Whatever they take may be another a moment later.
_CHANGES = re.compile(
    r"save\w*|write\w*|dump\w*|to_\w+|touch|remove|unlink|rmtree|rename|replace|copy\w*|move|rmdir"
    r"|\w*FileHandler|\w*Writer|\w*Lock|symlink\w*|truncate|tofile|export\w*|mk\w+|makedirs|log\w*"
    r"|download\w*|extract\w*|urlretrieve|SharedMemory"
)
_WRITES = frozenset({"write_text", "write_bytes", "save", "savez", "FileHandler", "touch"})
_MAKES = frozenset({"makedirs", "mkdir"})
_STARTS = frozenset({"run", "Popen", "call", "check_call", "check_output", "getoutput", "system",
                     "popen", "execvp", "execlp", "getstatusoutput"})  # fmt: skip
_OF_STARTS = ("subprocess", "sp", "os", "")
_HUB = frozenset({"from_pretrained", "load_dataset", "hf_hub_download", "snapshot_download",
                  "pipeline", "SentenceTransformer", "AutoTokenizer"})  # fmt: skip
_SERVES = re.compile(r"run|serve\w*|launch|listen|start\w*|\w*Server|TCPStore")
# What changes something, wherever it is called.
_WORKS = re.compile(
    r"append|pop|popleft|sort|update|remove|setdefault|write|seek|extend|insert|clear|reverse"
    r"|shuffle|mkdir|makedirs|load_state_dict|barrier|all_reduce|broadcast|init_process_group"
)
_LISTS = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "walk"})
# Nobody sees in which order these take what they get.
_IN_ANY_ORDER = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set"})
# By the name of a flag: it is for what a run leaves.
_IS_WRITTEN = re.compile(r"out|save|log|ckpt|check|cache|tmp|temp|result|export|work|run|dir$")
_URL_HOST = re.compile(r"[a-z0-9+]+://(?:[^/@\s]*@)?([A-Za-z0-9_][A-Za-z0-9._-]*)(?::\d+)?(?:/|$)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*\.so(?:\.[0-9.]+)?")
# Who starts ranks sets these, or each login does.
_GIVEN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
    r"|YOKED_\w+|HOME|PATH|USER|LOGNAME|SHELL|PWD"
)
# Of these the launcher knows the value, and a line of the program does not.
_LAUNCHED = re.compile(r"(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")
_STOPS = frozenset({"breakpoint", "pdb.set_trace", "ipdb.set_trace", "input"})
# A condition that holds on one rank of all; on one of each host it is another matter.
_ONE_RANK = re.compile(r"\b(global_)?rank\b|get_rank\(|RANK|\bis_(main|master)\w*", re.IGNORECASE)
_LOOKS_AT = frozenset({"exists", "isfile", "is_file"})
_LOOKS = frozenset({"which", "exists", "is_file", "isfile", "is_dir", "isdir", "system"})
_HANDLES = frozenset({"KeyError", "LookupError", "OSError", "FileNotFoundError",
                      "FileExistsError", "Exception", "BaseException"})  # fmt: skip


def asks(sources: Mapping[str, str]) -> Asks:
    """What these sources ask of a host.

    variables: without which the program fails; settings: variables that it can do without; reads,
    reads_below: paths, absolute or from `~`, of the second kind folders in which something is
    read; writes: paths in folders that have to be there; rewrites: in folders that it may make;
    creates: what must not be there yet; above: names of files for which it looks in the folders
    above its own; programs; libraries; ports; hosts; hub, torch_hub, nltk: by what names the
    caches of those have it; overwrites: of what a launcher tells a rank, what the program sets to a
    value of its own; dealt: what is dealt out by the number of a rank on its host; stops: calls
    that wait for somebody at a terminal; resumes: paths at which it looks, and from which it goes
    on; by_one: paths in its own folder that rank 0 writes and others read; asserts: calls in an
    assert that do something; shuffled: sets out of which names of files are taken as they come. Of
    paths from the program's own folder, fills: folders into which it writes and that it does not
    make; beyond: what lies outside (../x).
    """
    found: Asks = {}
    left = _MOST_CHARS
    for name, text in sources.items():
        left -= len(text)
        tree = _tree(text) if left >= 0 else None
        for kind, what, line in () if tree is None else _Source(tree).asked():
            if 0 < len(what) <= _LONGEST and what.isprintable():
                found.setdefault(kind, {}).setdefault(what, f"{name}:{line}")
    given = found.pop("sets", {})
    for kind in ("variables", "settings"):
        if kind in found:
            found[kind] = {each: place for each, place in found[kind].items() if each not in given
                           and not _GIVEN.fullmatch(each)}  # fmt: skip
    needed = found.get("variables", {})
    # Who asks whether it is there can do without it.
    for each in set(needed) & set(found.get("settings", {})):
        del needed[each]
    by_one, by_all = found.pop("written_by_one", {}), found.pop("read_by_all", {})
    looks, loads = found.pop("looks", {}), found.pop("loads", {})
    found["by_one"] = {path: by_all[path] for path in by_one
                       if path in by_all and not path.startswith(("/", "~"))}  # fmt: skip
    _leave_own(found)
    found["resumes"] = {path: place for path, place in looks.items() if path in loads
                        and path.startswith(("/", "~")) and path not in found["reads"]}  # fmt: skip
    return {kind: dict(list(names.items())[:MOST_ASKED]) for kind, names in found.items() if names}


def _leave_own(found: Asks) -> None:
    """Take out what the program makes by itself, or writes elsewhere in it."""
    changed = [*found.pop("changes", {}), *found.get("writes", {})]
    made = list(found.pop("makes", {}))
    own = [*changed, *made, *found.get("creates", {})]
    for kind in ("reads", "reads_below"):
        found[kind] = {path: place for path, place in found.get(kind, {}).items()
                       if not _is_below(path, own)
                       and not any(_is_below(each, [path]) for each in changed)}  # fmt: skip
    # A program that looks first, or takes it away, goes on.
    asked = {*changed, *found["reads"]}
    found["creates"] = {path: place for path, place in found.get("creates", {}).items()
                        if path.startswith(_SHARED) or path not in asked}  # fmt: skip
    for path, place in list(found.get("writes", {}).items()):
        if _UNKNOWN in made or _is_below(path, made):
            found.setdefault("rewrites", {})[path] = place
            del found["writes"][path]
    fills = found.get("fills", {}).items()
    found["fills"] = {path: place for path, place in fills
                      if _UNKNOWN not in made and not _is_below(path, made)}  # fmt: skip


def _is_below(path: str, folders: list[str]) -> bool:
    """Whether a path is one of these, or lies below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Source:
    """One file of the program."""

    def __init__(self, tree: ast.Module) -> None:
        self._paths = Paths(tree)
        nodes = self._paths.nodes
        self._guarded = set(_guarded(nodes))
        ifs = [node for node in nodes if isinstance(node, ast.If)]
        of_one_rank = [part for node in ifs if _holds_on_one(node.test) for part in node.body]
        self._of_one_rank = set(chain.from_iterable(map(ast.walk, of_one_rank)))
        self._local_ranks = {called(target) for node in nodes if isinstance(node, ast.Assign)
                             and any(map(_reads_local_rank, ast.walk(node.value)))
                             for target in node.targets} - {""}  # fmt: skip
        # What is done where it was asked for a variable first.
        asked = [part for node in ifs if any(map(_is_environ, ast.walk(node.test)))
                 for part in (*node.body, *node.orelse)]  # fmt: skip
        self._questioned = set(chain.from_iterable(map(ast.walk, asked)))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._sorted = {inner for node in calls if called(node.func) in _IN_ANY_ORDER
                        for each in node.args for inner in ast.walk(each)}  # fmt: skip
        self._listing = {self._paths.function_of(node) for node in calls
                         if called(node.func).rpartition(".")[2] in _LISTS}  # fmt: skip
        # Functions that change something, by their names.
        doing = {self._paths.function_of(node) for node in calls
                 if _WORKS.fullmatch(called(node.func).rpartition(".")[2])}  # fmt: skip
        self._workers = {each.name for each in doing if isinstance(each, ast.FunctionDef)}

    def asked(self) -> Iterator[tuple[str, str, int]]:
        """(kind, name, line) of all."""
        for node in self._paths.nodes:
            line = getattr(node, "lineno", 0)
            told: Iterator[tuple[str, str]] = iter(())
            if isinstance(node, ast.Subscript):
                told = chain(self._of_subscript(node), self._of_slice(node))
            elif isinstance(node, ast.Assign):
                told = self._of_assignment(node)
            elif isinstance(node, ast.Compare):
                told = self._of_comparison(node)
            elif isinstance(node, ast.Assert):
                told = self._of_assert(node)
            elif isinstance(node, ast.For):
                told = self._of_order(node.iter)
            elif isinstance(node, ast.Call):
                told = chain(self._of_call(node), self._of_order(*_listed(node)))
            for kind, name in told:
                yield kind, name, line

    def _of_subscript(self, node: ast.Subscript) -> Iterator[tuple[str, str]]:
        if _is_environ(node.value) and (name := _text(node.slice)):
            if not isinstance(node.ctx, ast.Load):
                yield "sets", name
            elif _VARIABLE.fullmatch(name):
                yield ("settings" if node in self._guarded else "variables"), name

    def _of_slice(self, node: ast.Subscript) -> Iterator[tuple[str, str]]:
        """Every n-th from the number of a rank on its host, which each host counts from 0."""
        each = node.slice
        if isinstance(each, ast.Slice) and each.lower and each.step:
            parts = list(ast.walk(each.lower))
            if any(_reads_local_rank(part) or called(part) in self._local_ranks for part in parts):
                yield "dealt", ast.unparse(node)[:_LONGEST]

    def _of_assignment(self, node: ast.Assign) -> Iterator[tuple[str, str]]:
        """Variables of the launcher that the program overwrites, whether they are set or not."""
        for each in node.targets:
            if isinstance(each, ast.Subscript) and _is_environ(each.value):
                name = _text(each.slice) or ""
                is_own = _text(node.value) is not None and node not in self._questioned
                if is_own and _LAUNCHED.fullmatch(name):
                    yield "overwrites", name

    def _of_assert(self, node: ast.Assert) -> Iterator[tuple[str, str]]:
        """What is done in an assert, and not only asked."""
        for each in ast.walk(node.test):
            name = called(each.func) if isinstance(each, ast.Call) else ""
            last = name.rpartition(".")[2]
            if name in self._workers or (name != last and _WORKS.fullmatch(last)):
                yield "asserts", name.lstrip(".")

    def _of_order(self, *values: ast.expr) -> Iterator[tuple[str, str]]:
        """Names of files that are taken out of a set as they come."""
        for each in values:
            is_set = isinstance(each, (ast.Set, ast.SetComp)) or (
                isinstance(each, ast.Call) and called(each.func) in ("set", "frozenset")
            )
            here = self._paths.function_of(each)
            if is_set and each not in self._sorted and here in self._listing:
                yield "shuffled", ast.unparse(each)[:_LONGEST]

    def _of_comparison(self, node: ast.Compare) -> Iterator[tuple[str, str]]:
        name = _text(node.left)
        if name and any(map(_is_environ, node.comparators)) and _VARIABLE.fullmatch(name):
            yield "settings", name

    def _of_call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        full = called(node.func)
        owner, _, last = full.rpartition(".")
        first = first_text(node)
        if full in ("os.getenv", "getenv", "os.environ.get", "environ.get", "os.environ.pop"):
            if first and _VARIABLE.fullmatch(first):
                yield "settings", first
        elif full in ("os.environ.setdefault", "os.putenv") and first:
            yield "sets", first
        elif last in ("load_dotenv", "find_dotenv") and first is None:
            yield "above", ".env"
        elif node not in self._guarded:
            starts = last in _STARTS and owner.rpartition(".")[2] in _OF_STARTS
            if starts and node.args and (program := _program(node.args[0])):
                yield "programs", program
            if last in ("CDLL", "LoadLibrary", "PyDLL") and first and _LIBRARY.fullmatch(first):
                yield "libraries", first
            if full in _STOPS:
                yield "stops", full
        yield from self._of_net(node, last, first)
        yield from _of_caches(full, last, first)
        yield from self._of_defaults(node) if last == "add_argument" else ()
        yield from self._of_paths(node, last)
        for path in self._whole_paths(node):
            yield from self._of_one(node, last, path)

    def _of_net(self, node: ast.Call, last: str, first: str | None) -> Iterator[tuple[str, str]]:
        listens = last == "bind" or _SERVES.fullmatch(last) is not None
        values = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "port")]
        if last == "TCPStore":
            values += node.args[1:2]
        for value in values if listens else ():
            is_pair = isinstance(value, ast.Tuple) and len(value.elts) == 2
            if not is_pair and value in node.args[:1] and last != "start_http_server":
                continue
            told = value.elts[1] if is_pair else value  # type: ignore[attr-defined]
            port = told.value if isinstance(told, ast.Constant) else None
            if type(port) is int and 0 < port < _PORT_LIMIT and node not in self._guarded:
                yield "ports", str(port)
        address = node.args[0] if node.args else None
        if last in ("create_connection", "connect") and isinstance(address, ast.Tuple):
            first = _text(address.elts[0]) if address.elts else None
            yield from _host(first)
        elif last in ("gethostbyname", "getaddrinfo"):
            yield from _host(first)
        elif first and (url := _URL_HOST.match(first)):
            yield from _host(url[1])

    def _of_paths(self, node: ast.Call, last: str) -> Iterator[tuple[str, str]]:
        is_guarded = node in self._guarded
        if last == "SharedMemory":
            name = first_text(node) or _keyword(node, "name")
            if name and _keyword(node, "create") == "True" and not is_guarded:
                yield "creates", f"{_SHARED}{name.lstrip('/')}"
            return
        own = self._paths.of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        values = [*node.args, *(each.value for each in node.keywords)]
        given = [found for each in values if (found := self._paths.of(each)) is not None]
        target = own or (self._paths.of(node.args[0]) if node.args else None)
        if last == "open" and target is not None:
            mode = _mode(node, has_receiver=own is not None)
            yield from _opened(*target, mode, guarded=is_guarded)
        elif last in _MAKES:
            yield "makes", _below(target[0]) if target else _UNKNOWN
        elif _CHANGES.fullmatch(last):
            for path, is_whole in filter(None, (*given, own)):
                yield "changes", _below(path)
                if last in _WRITES:
                    yield from _opened(path, is_whole, "w", guarded=is_guarded)
        elif last != "open" and _READS.fullmatch(last):
            for path, is_whole in filter(None, (*given, own)):
                yield from _opened(path, is_whole, "r", guarded=False)

    def _of_one(self, node: ast.Call, last: str, path: str) -> Iterator[tuple[str, str]]:
        """Files from which ranks go on, and files that rank 0 alone writes."""
        if last in _LOOKS_AT:
            yield "looks", path
        is_method = isinstance(node.func, ast.Attribute) and self._paths.of(node.func.value)
        mode = _mode(node, has_receiver=bool(is_method)) if last == "open" else ""
        writes = _CHANGES.fullmatch(last) or set(mode) & set("wax+")
        if writes and node in self._of_one_rank:
            yield "written_by_one", _below(path)
        elif not writes and last not in _LOOKS_AT and (last == "open" or _READS.fullmatch(last)):
            yield "loads", path
            if node not in self._of_one_rank and node not in self._guarded:
                yield "read_by_all", _below(path)

    def _whole_paths(self, node: ast.Call) -> Iterator[str]:
        """The paths that a call takes, or is a method of, as far as they are known whole."""
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for each in (*owner, *node.args, *(each.value for each in node.keywords)):
            told = self._paths.of(each)
            if told is not None and told[1]:
                yield told[0]

    def _of_defaults(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        """Paths that a flag has by default: whoever gives another has it on all hosts alike."""
        if _IS_WRITTEN.search(first_text(node) or ""):
            return
        for each in node.keywords:
            told = self._paths.of(each.value) if each.arg == "default" else None
            if told is not None:
                found = _opened(*told, "r", guarded=False)
                yield from ((kind, path) for kind, path in found if kind == "reads")


def _is_environ(node: ast.AST) -> bool:
    return called(node) in ("os.environ", "environ")


def _holds_on_one(test: ast.expr) -> bool:
    said = ast.unparse(test)
    return _ONE_RANK.search(said) is not None and "local" not in said.lower()


def _reads_local_rank(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "LOCAL_RANK"


def _listed(node: ast.Call) -> list[ast.expr]:
    """What is made a list, or counted through."""
    return node.args[:1] if called(node.func) in ("list", "tuple", "enumerate") else []


def _below(path: str) -> str:
    """A path, without the program's own folder before it."""
    return path.removeprefix(f"{PROGRAM}/")


def _opened(path: str, is_whole: bool, mode: str, *, guarded: bool) -> Iterator[tuple[str, str]]:
    """What follows of a path that is opened. is_whole: else a part of its name is not known."""
    is_far = path.startswith(("/", "~/"))
    is_outside = path.startswith(("../", f"{PROGRAM}/../"))
    if path.startswith(ANY_ABOVE):
        if is_whole and mode.startswith("r") and path != ANY_ABOVE:
            yield "above", path.removeprefix(f"{ANY_ABOVE}/")
    elif not set(mode) & set("wax+"):
        if is_far:
            yield ("reads" if is_whole else "reads_below"), path
        elif is_outside:
            yield "beyond", _below(path)
    else:
        if "x" not in mode:
            yield "changes", _below(path)
        if is_outside or guarded:
            return
        whole = _below(path if is_whole else f"{path}/{NEW}")
        if is_far:
            yield ("creates" if "x" in mode else "writes"), whole
        elif "/" in whole:
            yield "fills", whole.rpartition("/")[0]


def _of_caches(full: str, last: str, first: str | None) -> Iterator[tuple[str, str]]:
    if not first:
        return
    if full in ("torch.hub.load", "hub.load"):
        yield "torch_hub", first.partition(":")[0]
    elif full in ("nltk.download", "nltk.data.find", "nltk.data.load"):
        yield "nltk", first
    elif last in _HUB and _REPOSITORY.fullmatch(first):
        yield "hub", first


def _host(name: str | None) -> Iterator[tuple[str, str]]:
    # An address is resolved everywhere, and so is localhost.
    is_name = name and _NAME.fullmatch(name) and not name.replace(".", "").isdigit()
    if name and is_name and name != "localhost":
        yield "hosts", name


def _program(node: ast.expr) -> str | None:
    """The program that a command begins with, where it is a name to be looked up."""
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        word = _text(node.elts[0])
    else:
        try:
            word = next(iter(shlex.split(_text(node) or "")), None)
        except ValueError:
            word = None
    return word if word and _NAME.fullmatch(word) else None


def _mode(node: ast.Call, *, has_receiver: bool) -> str:
    place = 0 if has_receiver else 1
    told = _text(node.args[place]) if len(node.args) > place else _keyword(node, "mode")
    # One that is not known may write.
    is_told = len(node.args) > place or any(each.arg == "mode" for each in node.keywords)
    return told or ("a" if is_told else "r")


def _keyword(node: ast.Call, name: str) -> str | None:
    for each in node.keywords:
        if each.arg == name and isinstance(each.value, ast.Constant):
            return str(each.value.value)
    return None


def _text(node: ast.AST | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # type: ignore[union-attr]


def _guarded(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes whose failure the program takes care of, or that it reaches only after a question."""
    for node in nodes:
        if isinstance(node, ast.Try):
            kinds = [each.type for each in node.handlers]
            parts = [kind.elts if isinstance(kind, ast.Tuple) else [kind] for kind in kinds if kind]
            names = {called(each).rpartition(".")[2] for each in chain.from_iterable(parts)}
            if None in kinds or names & _HANDLES:
                for each in node.body:
                    yield from ast.walk(each)
        elif isinstance(node, (ast.If, ast.IfExp)) and _asks_for_it(node.test):
            body = node.body if isinstance(node.body, list) else [node.body]
            for part in body:
                yield from ast.walk(part)


def _asks_for_it(test: ast.expr) -> bool:
    """Whether a condition looks whether something is there."""
    return any(
        (isinstance(each, ast.Call) and called(each.func).rpartition(".")[2] in _LOOKS)
        or called(each) in ("sys.platform", "os.name")
        for each in ast.walk(test)
    )


def to_hosts(found: Asks) -> dict[str, list[str]]:
    """The same as hosts are asked: by kind, names alone."""

    def both(*kinds: str) -> list[str]:
        names = (name for kind in kinds for name in found.get(kind, ()))
        return [name for name in names if not name.startswith(_OF_A_HOST)]

    told = {
        "variables": both("variables", "settings"),
        "files": both("reads", "reads_below", "links", "resumes"),
        "writes": both("writes", "rewrites", "links"),
        **{kind: list(found.get(kind, ())) for kind in _AS_THEY_ARE},
    }
    return {kind: names[:MOST_ASKED] for kind, names in told.items() if names}
