"""What the expressions of a program for its paths come to, as far as its source tells.

`os.path.join(HOME, "x")`, `Path("~/x").expanduser() / name`, an f-string: a text, and whether it is
the whole of it; what follows of one that is not is unknown.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator

# The folder of the program itself.
PROGRAM = "."
# A folder above the program's, whichever has what is looked for.
ANY_ABOVE = "^"
_DEEPEST = 12
# What gives back the path that it got.
_SAME = frozenset({"abspath", "realpath", "normpath", "expanduser", "expandvars", "fspath", "str",
                   "Path", "PurePath", "resolve", "absolute", "as_posix", "rstrip"})  # fmt: skip

Told = tuple[str, bool]
# The function in which a name is set, None for none, and the name.
_Key = tuple[ast.AST | None, str]


class Paths:
    """The paths in a source. nodes: all of its tree, in the order of the text."""

    def __init__(self, tree: ast.Module) -> None:
        self._values: dict[_Key, list[ast.expr]] = {}
        self._climbs: set[_Key] = set()
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._known: dict[ast.expr, Told | None] = {}
        self.nodes: list[ast.AST] = []
        self._walk(tree)
        for node in self.nodes:
            for name, value in _assigned(node):
                key = (self._scopes.get(node), name)
                if _climbs(name, value):
                    self._climbs.add(key)
                else:
                    self._values.setdefault(key, []).append(value)

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """The function in which something stands; None: in none."""
        return self._scopes.get(node)

    def _walk(self, tree: ast.Module) -> None:
        # ast.walk for each function, and once more for each question, takes three times as long.
        waiting: list[tuple[ast.AST, ast.AST | None]] = [(tree, None)]
        while waiting:
            node, scope = waiting.pop()
            self.nodes.append(node)
            if scope is not None:
                self._scopes[node] = scope
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            within = node if is_function else scope
            waiting += [(each, within) for each in reversed(list(ast.iter_child_nodes(node)))]

    def of(self, node: ast.expr, depth: int = 0) -> Told | None:
        """(text, whether it is all of it) of a path; None: nothing is known."""
        if depth > _DEEPEST:
            return None
        if node not in self._known:
            # What is set to itself, and more, is not known.
            self._known[node] = None
            self._known[node] = self._found(node, depth)
        return self._known[node]

    def _found(self, node: ast.expr, depth: int) -> Told | None:
        if isinstance(node, ast.Constant):
            return _plain(node) if _is_path(node.value) else None
        if isinstance(node, (ast.Name, ast.Attribute)) and (name := called(node)):
            return self._of_name(node, name, depth)
        if isinstance(node, ast.JoinedStr):
            return self._joined(list(_pieces(node)), depth, between="")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
            between = "/" if isinstance(node.op, ast.Div) else ""
            return self._joined([node.left, node.right], depth, between=between)
        return self._of_call(node, depth) if isinstance(node, ast.Call) else None

    def _of_name(self, node: ast.expr, name: str, depth: int) -> Told | None:
        if name == "__file__":
            return f"{PROGRAM}/FILE", True
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            return self._above(node.value, depth)
        for key in ((self._scopes.get(node), name), (None, name)):
            if key in self._climbs:
                return ANY_ABOVE, True
            if values := self._values.get(key):
                told = {self.of(each, depth + 1) for each in values}
                return told.pop() if len(told) == 1 else None
        return None

    def _above(self, node: ast.expr, depth: int) -> Told | None:
        told = self.of(node, depth + 1)
        if told is None:
            return None
        path, is_whole = told
        if path in (PROGRAM, ".."):
            return f"{PROGRAM}/..", True
        # What is not whole lies in the folder that is known, or below it.
        return (posixpath.dirname(path) or PROGRAM, True) if is_whole else told

    def _of_call(self, node: ast.Call, depth: int) -> Told | None:
        full = called(node.func)
        owner, _, last = full.rpartition(".")
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if last in ("getcwd", "cwd"):
            return PROGRAM, True
        if last == "home" and owner.endswith("Path"):
            return "~", True
        if last == "dirname" and node.args:
            return self._above(node.args[0], depth)
        if last in ("join", "joinpath"):
            own = [] if owner.endswith("path") or receiver is None else [receiver]
            # ", ".join(...) joins words.
            if last == "join" and own:
                return None
            return self._joined([*own, *node.args], depth, between="/")
        if last in _SAME:
            inner = node.args[0] if node.args and last not in ("rstrip",) else receiver
            if last in ("Path", "PurePath") and len(node.args) > 1:
                return self._joined(node.args, depth, between="/")
            return None if inner is None else self.of(inner, depth + 1)
        return None

    def _joined(self, nodes: list[ast.expr], depth: int, *, between: str) -> Told | None:
        """The known beginning of parts, one after the other."""
        if not nodes:
            return None
        first = self.of(nodes[0], depth + 1)
        if first is None:
            return None
        path, is_whole = first
        for each in nodes[1:]:
            if not is_whole:
                break
            part = self.of(each, depth + 1) or _plain(each)
            if part is None:
                # Of `/data/rows-{n}` the folder is known.
                path = path if between else posixpath.dirname(path)
                return (path, False) if path else None
            text, is_whole = part
            path = posixpath.join(path, text) if between else path + text
        return posixpath.normpath(path) if path[:1] in "/~" else path, is_whole


def called(node: ast.AST) -> str:
    """The name that an expression has, with dots; "" for what has none: `f().join` is `.join`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{called(node.value)}.{node.attr}"
    return ""


def first_text(node: ast.Call) -> str | None:
    """The first argument of a call, where it is a text."""
    first = node.args[0] if node.args else None
    told = first.value if isinstance(first, ast.Constant) else None
    return told if isinstance(told, str) else None


def _plain(node: ast.expr) -> Told | None:
    """A text that is a part of a path."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return (node.value, True) if is_text else None  # type: ignore[attr-defined]


def _pieces(node: ast.JoinedStr) -> Iterator[ast.expr]:
    for each in node.values:
        yield each.value if isinstance(each, ast.FormattedValue) else each


def _is_path(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) < 200 and "\n" not in value


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, what it is set to) by one statement."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if name := called(target):
                yield name, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        if name := called(node.target):
            yield name, node.value
    elif isinstance(node, (ast.For, ast.AugAssign)) and (name := called(node.target)):
        # `for folder in Path(__file__).parents`
        yield name, node.iter if isinstance(node, ast.For) else ast.Constant(None)
    elif isinstance(node, ast.arg):
        # Whoever calls the function gives it.
        yield node.arg, ast.Constant(None)


def _climbs(name: str, value: ast.expr) -> bool:
    """Whether a name is set to the folder above it, or to one above another after the other."""
    if isinstance(value, ast.Attribute) and value.attr == "parents":
        return True
    if isinstance(value, ast.Attribute) and value.attr == "parent":
        return called(value.value) == name
    is_dirname = isinstance(value, ast.Call) and called(value.func).endswith("dirname")
    return is_dirname and bool(value.args) and called(value.args[0]) == name  # type: ignore[attr-defined]
