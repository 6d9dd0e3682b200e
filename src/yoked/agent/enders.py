"""Scripts and settings of this host that end programs, take files away or close sessions, known by
their own text.

Source: proc(5), inotify(7), pgrep(1), sshd_config(5), crontab(5), logrotate(8).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.agent.startfiles import matching, sshd_files
from yoked.agent.writers import read_script, scripts

_PROC = Path("/proc")
# In which others have programs run that do not stay.
_TABLES = ("/etc/crontab", "/etc/cron.d/*", "/etc/cron.hourly/*", "/var/spool/cron/crontabs/*",
           "/var/spool/cron/*", "/etc/logrotate.d/*", "/etc/logrotate.conf")  # fmt: skip
_SSHD = ("/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/*")
# Signal 0 reaches nobody; a container's, a unit's or a terminal's end is no program's.
_ENDS = re.compile(
    r"(?<![-\w.])(?<!docker )(?<!podman )(?<!systemctl )(?<!tmux )"
    r"(?:pkill|killall5?|skill|kill)\s+(?!-0\b|-l\b|-s\s*0\b|-L\b|-q?$)"
    r"|\bxargs\b.*\bkill\b|\bos\.kill(?:pg)?\(|\.(?:kill|terminate)\(\)|\bsend_signal\("
    r"|\bfuser\b.*\s-\w*k|\bloginctl\s+(?:terminate|kill)-"
)
# A pid file's, its own child, or itself.
_OWN = re.compile(r"(?:\$\(|`)\s*(?:cat|head|<)\s|\$!|\$\$|\s%\d")
_BY_NAME = re.compile(r"(?<![-\w.])(pkill|pgrep|killall|pidof|skill)\b([^|;&)`]*)")
_OF_PS = re.compile(r"\bps\b[^|;&)`]*\s-C\s*([\w.,-]+)")
_GREP = re.compile(r"\b[ef]?grep\b([^|;&)`]*)")
_AWK = re.compile(r"\bawk\b[^/|]*/([^/]+)/")
_EQUALS = re.compile(r"(?:=|\bin)\s*(\^?python[\w.*]*)")
_QUOTED = re.compile(r"[\"']\^?python[\d.*$]*[\"']")
_LISTS = re.compile(r"\b(?:ps|top|ss|netstat|lsof|pgrep)\b")
# By what they are: names, and whole commands, of programs that a run has.
_OURS = {
    "python": (
        {"python", "python3", Path(sys.executable).name, Path(sys.executable).resolve().name},
        {f"{sys.executable} -u train.py", "python3 -m yoked", "torchrun train.py"},
    ),
    "sessions": ({"sshd", "sshd-session"}, {"sshd: ada@notty", "sshd-session: ada@notty"}),
}
# Options of pgrep and pkill that have a value behind them.
_VALUED = re.compile(r"-[uUPtgGsFr]|--(?:signal|parent|euid|uid|pidfile|older|ns)")
_EXCLUDES = re.compile(r"(?:^|\s)-[a-zA-Z]*[voc]")
_ALL = re.compile(r"\bprocess_iter\b|\bpids\(\)|\bnet_connections\b|/proc\b|\bpsutil\b")
_ABOUT = {
    "sessions": r"\bloginctl\b|\bwho\s+-\w*u|\bpts/|\bnotty\b",
    "users": r"\b(?:pkill|killall|skill|pgrep)\b.*\s-[uU]\b",
    "orphans": r"-P\s*1\b|--ppid[ =]*1\b|\bPPid\b|\bppid\b.*[=q]\s*1\b|\bppid\(\)|\$2\s*==\s*1\b",
    "listeners": r"\b(?:ss|netstat)\b.*\s-\w*p|\blsof\b.*\s-\w*i|"
    r"\bfuser\b.*/tcp|\bnet_connections\b",
    "memory": r"\brss\b|\bVmRSS\b|%mem\b|\bpmem\b|\bmemory_(?:info|percent)\b|\bpss\b",
    "shortage": r"\bMemAvailable\b|\bMemFree\b|\bvirtual_memory\b|\bfree\s+-|\bpressure/memory\b",
    "cores": r"%cpu\b|\bpcpu\b|\bcpu_percent\b|\bloadavg\b",
    "GPUs": r"\bnvidia-smi\b.*compute-apps|/dev/nvidia",
    "age": r"\betimes?\b|\bcreate_time\b|--older\b",
}
_TAKES = re.compile(
    r"(?<![-\w.])(?:mv|rm|unlink|shred|truncate)\s|\s-delete\b|\bshutil\.(?:move|rmtree)\b|"
    r"\bos\.(?:remove|unlink|rename|replace|truncate)\b|\.unlink\(|\brsync\b.*--delete|"
    r"\bgit\b.*\sclean\b"
)
_PATH = re.compile(r"(?:~|\$HOME|\$\{HOME\})?(?:/[\w.@+-]+)+")
# By the kernel's names, which have 15 letters.
_SCANNERS = frozenset(
    {
        "clamonacc", "clamd", "freshclam", "mdatp", "wdavdaemon", "falcon-sensor",
        "falcon-sensor-b", "sentinelagent", "sentineld", "s1-agent", "s1-orchestrator", "cbagentd",
        "cbdaemon", "savd", "savscand", "esets_daemon", "eset-nod32", "oaeventd", "ds_agent",
        "xagt", "cylancesvc", "kesl", "fsavd", "fsoasd", "rtvscand", "mfetpd", "maldet", "osqueryd",
        "ossec-syscheckd", "wazuh-syscheckd", "aide", "tripwire",
    }
)  # fmt: skip
# What is silent counts for no other setting: a client answers ClientAlive by itself.
_CHANNELS = re.compile(r"\s*ChannelTimeout[\s=]+(.*?)\s*", re.IGNORECASE)
_OF_SESSION = re.compile(r"(?:session(?::\S*?)?|global|\*)=(\S+)")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST, _MOST_DIGITS, _MOST = 200, 15, 8


def probe_enders(proc: Path = _PROC) -> dict[str, Any] | None:
    """programs, by `_ender`: what goes on, or comes again, and signals programs that are called as
    ranks are, or that are chosen by what ranks do; sessions, by `_sessions`. None: no /proc.
    """
    if not (proc / "self/stat").exists():
        return None
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for script in scripts(proc):
        if script.goes_on and (told := _ender(script.file, script.text)):
            # Parts of a pipeline are as many processes.
            own = {"pid": int(script.process.name), "command": script.command, **told}
            found.setdefault((told["file"], told["line"], told["words"]), own)
    for path, program in _comes_again():
        told = _ender(str(path), program)
        if told and _OURS.keys() & set(told["about"]):
            found.setdefault((told["file"], told["line"], told["words"]), {**told, "pid": None})
    return {"programs": list(found.values())[:_MOST], "sessions": list(_sessions())}


def _comes_again() -> Iterator[tuple[Path, str]]:
    """Tables of cron and logrotate, and the scripts that the former name."""
    for path in matching(_TABLES):
        content = read_script(path)
        if content:
            yield path, content
        for line in content.splitlines() if "cron" in str(path) else ():
            named = _PATH.search(line.rpartition(" root ")[2])
            if named and not line.lstrip().startswith("#"):
                script = read_script(Path(named[0]).expanduser())
                if script.startswith("#!"):
                    yield Path(named[0]).expanduser(), script


def _ender(file: str, program: str) -> dict[str, Any] | None:
    """file, line, words: where a script signals programs; about: which; limit_bytes: above which
    memory, null: it tells none. None: it signals none that a rank could be one of.
    """
    lines = [_plain(line) for line in program.splitlines()]
    is_python = "import " in program and not _BY_NAME.search(program)
    # Python's own way to all processes; else it is about its children.
    if is_python and not _ALL.search(program):
        return None
    whole = "\n".join(lines)
    named = [kind for line in lines for kind in _named(line)]
    if is_python and _QUOTED.search(program):
        named.append("python")
    for number, line in enumerate(lines, start=1):
        for act, own in _chosen(line):
            # Where it names nobody itself, others have chosen before.
            chosen = own or named
            reach = whole if chosen or is_python else _leading(lines, line, act)
            of = list(dict.fromkeys([*filter(None, chosen), *_about(reach)]))
            if of and (any(chosen) or not chosen):
                return {
                    "file": file or None,
                    "line": number if file else 0,
                    "words": line[:_LONGEST],
                    "about": of,
                    "limit_bytes": _limit(whole) if "memory" in of else None,
                }
    return None


def _about(program: str) -> list[str]:
    return [name for name, words in _ABOUT.items() if re.search(words, program, re.IGNORECASE)]


def _leading(lines: list[str], line: str, act: str) -> str:
    """The lines that tell what an act in a line is about: that one, and where its variables come
    from; empty: it is about a child, or a pid file.
    """
    names = "|".join(re.findall(r"\$\{?([A-Za-z_]\w*)", act))
    gives = re.compile(
        rf"\b(?:{names})=|\bfor (?:{names}) in\b|\bread\b.*\b(?:{names})\b|\bdone\s*<"
    )
    found = [each for each in lines if each == line or (names and gives.search(each))]
    return "" if any(map(_OWN.search, found)) else "\n".join(found)


def _chosen(line: str) -> Iterator[tuple[str, list[str]]]:
    """Each act of a line that signals, and as `_named` has it, by which names it chooses."""
    for sends in _ENDS.finditer(line):
        act = re.split("[;|&]", line[sends.start() :])[0]
        if not _OWN.search(act):
            # What finds programs by itself heeds no other.
            yield act, list(_named(act if _BY_NAME.match(act) else line))


def _plain(line: str) -> str:
    """Without comments and quotes."""
    return " ".join(re.sub(r"(^|\s)#.*", "", line).replace('"', " ").replace("'", " ").split())


def _named(line: str) -> Iterator[str]:
    """The kind of our programs that each name in a line means, as `_meant` tells it."""
    for tool, rest in _BY_NAME.findall(line):
        words = rest.split()
        options = {word for word in words if re.fullmatch(r"-[a-z]+", word)}
        by = {letter for word in options for letter in word[1:]}
        if names := _values(words):
            exact = "x" in by or tool in ("killall", "pidof", "skill")
            yield _meant(names, exact=exact, full="f" in by)
    for names in _OF_PS.findall(line):
        yield _meant(names.split(","), exact=True)
    for rest in _GREP.findall(line):
        if _LISTS.search(line) and not _EXCLUDES.search(rest) and (names := _values(rest.split())):
            yield _meant(names[:1], full=True)
    for pattern in (*_AWK.findall(line), *_EQUALS.findall(line)):
        yield _meant([pattern], full=True)


def _values(words: list[str]) -> list[str]:
    """The words that are no options, nor of one."""
    kept, skip = [], False
    for word in words:
        if not skip and not word.startswith(("-", "$", ">", "2>", "<")):
            kept.append(word)
        skip = not skip and _VALUED.fullmatch(word) is not None
    return kept


def _meant(patterns: Iterable[str], *, exact: bool = False, full: bool = False) -> str:
    """The kind of our programs that names, or whole commands, mean, of `_OURS`; empty: none."""
    for pattern in patterns:
        try:
            find = re.compile(pattern).fullmatch if exact else re.compile(pattern).search
        except (re.error, RecursionError, OverflowError):
            continue
        for kind, (names, commands) in _OURS.items():
            if any(map(find, commands if full else names)):
                return kind
    return ""


def _limit(program: str) -> int | None:
    """The largest number of a script, which is in kB where it reads what ps or /proc tell."""
    numbers = [int(each) for each in re.findall(r"\b\d{4,}\b", program)
               if len(each) <= _MOST_DIGITS]  # fmt: skip
    if not numbers:
        return None
    return max(numbers) * (1 if "memory_info" in program else 1024)


def takers(folders: Iterable[Path], proc: Path = _PROC) -> list[dict[str, Any]]:
    """Programs that may have taken files out of these folders, [{pid, command, file, line, words}]:
    scripts that name one, or one above it; scanners, by their names; those that are told of changes
    there.
    """
    above = {str(each) for folder in folders for each in (folder, *folder.parents)} - {"/"}
    found: dict[str, dict[str, Any]] = {}
    for script in scripts(proc):
        lines = script.text.splitlines()
        at = next((n for n, line in enumerate(lines) if _TAKES.search(_plain(line))), None)
        if at is not None and script.goes_on and above & _paths(script.text):
            told = {"file": script.file or None, "line": at + 1 if script.file else 0,
                    "words": " ".join(lines[at].split())[:_LONGEST]}  # fmt: skip
            own = {"pid": int(script.process.name), "command": script.command}
            found.setdefault(script.file or script.command, {**own, **told})
    watched = _inodes(above)
    for process in sorted(proc.glob("[0-9]*")):
        name = text(process / "comm")
        if process.name != str(os.getpid()) and (
            name.lower() in _SCANNERS or watched & _watches(process)
        ):
            command = " ".join(text(process / "cmdline").split("\0")).strip() or name
            own = {"pid": int(process.name), "command": command[:_LONGEST]}
            found.setdefault(name, {**own, "file": None, "line": 0, "words": ""})
    return list(found.values())[:_MOST]


def _paths(program: str) -> set[str]:
    # Not by Path.expanduser, which raises where a user has no home.
    return {*map(os.path.expanduser, map(os.path.expandvars, _PATH.findall(program)))}


def _inodes(folders: Iterable[str]) -> set[int]:
    found = set()
    for folder in folders:
        try:
            found.add(Path(folder).stat().st_ino)
        except OSError:
            continue
    return found


def _watches(process: Path) -> set[int]:
    """The inodes of which a process is told by inotify or fanotify, as far as we may see them."""
    found: set[int] = set()
    try:
        for each in (process / "fd").iterdir():
            if os.readlink(each).endswith("notify"):  # noqa: PTH115 - it leads to no file
                told = text(process / "fdinfo" / each.name)
                found |= {int(ino, 16) for ino in re.findall(r"notify .*?ino:([0-9a-f]+)", told)}
    except OSError:
        return found
    return found


def _sessions() -> Iterator[dict[str, Any]]:
    """The line of sshd's settings that ends silent sessions, {file, line, words, after_s}: the
    first of several is good.
    """
    for path in matching(list(sshd_files()) or _SSHD):
        for number, line in enumerate(read_script(path).splitlines(), start=1):
            found = _CHANNELS.fullmatch(line)
            if found is None:
                continue
            times = [after_s for each in _OF_SESSION.findall(found[1])
                     if (after_s := _seconds(each))]  # fmt: skip
            if times:
                words = " ".join(line.split())
                yield {"file": str(path), "line": number, "words": words, "after_s": min(times)}
            return


def _seconds(value: str) -> int:
    """A time as sshd_config(5) has it; 0: none."""
    parts = re.findall(r"(\d+)([smhdw]?)", value.lower())
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts)
