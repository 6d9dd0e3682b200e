"""Why ssh leads to no agent: told from its own words, and from one more try. Nothing is done here.

Words of a host may look like ssh's. So no file is believed to be named by ssh but those that its
configuration names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from yoked.doctor.bundle import without_secrets
from yoked.doctor.sshway import OFFER, Signs, Try, Way, behind, told_on_the_way
from yoked.errors import NoPythonError, YokedError
from yoked.records.examination import SshFailure, SshKind
from yoked.records.rules import CONTROL
from yoked.remote.ssh import NoAgentError
from yoked.remote.transport import NO_INPUT

# Causes that lie on this machine, whatever host ssh was to reach.
HERE = frozenset(
    {
        "no-ssh", "config", "config-mode", "narrowed", "key-mode", "passphrase", "no-key",
        "unused-key", "stale-pub", "too-many", "bind", "forbidden", "no-route", "asks", "agent",
        "helper", "waits", "certificate", "key-gone", "kept-keys", "agent-refuses", "agent-lacks",
        "proxy-gone", "proxy-asks", "proxy-ends", "option", "program", "revoked-list",
    }
)  # fmt: skip
# Causes that lie on the host, or the jump host, that they name.
OF_HOP = frozenset({"jump-in", "jump-forbids", "jump-name"})
_LONGEST = 400
# Source: yoked.agent.boot.
_NO_PLACE = "no place for the agent"
_NO_SSH = "there is no ssh on this machine"
_CAME_IN = re.compile(r"^(Authenticated to |debug1: Authentication succeeded)", re.MULTILINE)
_METHODS = re.compile(r"^debug1: Authentications that can continue: (\S+)", re.MULTILINE)
_OFFERED = re.compile(r"^debug1: Offering public key: (.+)$", re.MULTILINE)
_ACCEPTED = re.compile(r"^debug1: Server accepts key: (.+)$", re.MULTILINE)
_TOO_OPEN = re.compile(r"^Permissions 0\d+ for '(.+)' are too open\.", re.MULTILINE)
_SIGNATURES = re.compile(r"^debug1: \S+: server-sig-algs=<([^>]*)>", re.MULTILINE)
_KEY_OPTIONS = re.compile(r"^debug1: Remote: (/\S+:\d+): key options:.* command\b", re.MULTILINE)
# The program that a `Match exec` of ssh's settings runs.
EXECUTED = re.compile(r"^debug1: Executing command: '(.*)'$", re.MULTILINE)
_CERTIFIED = re.compile(
    r"^debug1: Server host certificate: .* CA \S+ (SHA256:\S{43}) ", re.MULTILINE
)
_NO_IDENTITY = re.compile(r"^no such identity: (.+): No such file or directory$", re.MULTILINE)
_HAS_KEYS = re.compile(
    r"^debug1: get_agent_identities: agent returned [1-9]\d* keys$", re.MULTILINE
)
# Of a program that leads to a host: it wants a person; or the way behind it is closed.
_WANTS_PERSON = re.compile(
    r"(?i)browser|log ?in\b|sign ?in\b|authenticat|password|passphrase|passcode|"
    r"verification code|/dev/tty"
)
_OF_NETWORK = re.compile(
    r"(?i)refused|timed? ?out|unreachable|no route|resolve|not known|reset|closed|broken pipe|"
    r"connection failed|bad gateway|host is down|prohibited"
)
_NOT_STARTED = re.compile(
    r"not found|No such file or directory|cannot execute|Permission denied|Exec format error"
)
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_Table = tuple[tuple[str, SshKind, str], ...]
# What comes is not what was sent.
_ALTERED = (
    r"incorrect signature|Corrupted MAC on input|Bad packet length|"
    r"message authentication code incorrect"
)
# ssh goes on with the plain key: it is the reason where that is not known, either.
_BAD_CERTIFICATE = (
    r"^Certificate invalid: (?P<about>[^\r\n]+)\r?$"
    r"(?=[\s\S]*^Host key verification failed)(?![\s\S]*HAS CHANGED)"
)
# Then ssh takes every host's key for revoked.
_REVOKED_LIST = (
    r"^Error checking host key .* in revoked keys file (?P<about>[^\r\n]+): [^:\r\n]+\r?$"
)
# What ssh says, with the kind and the cause; the first that fits.
_OF_SSH: _Table = (
    (r"^(?P<about>[/~][^:\n]*): line \d+: Bad configuration option", "other", "config"),
    (_ALTERED, "other", "altered"),
    (r"marked as revoked", "host-key", "revoked"),
    (_REVOKED_LIST, "host-key", "revoked-list"),
    (_BAD_CERTIFICATE, "host-key", "host-certificate"),
    (OFFER.pattern, "other", "no-match"),
    (r"Too many authentication failures", "denied", "too-many"),
    (r"stdio forwarding failed|proxy dialer did not pass back", "other", "jump"),
    (r"[Nn]ot permitted to log in yet|System is going down", "other", "starting"),
    (r"Cannot assign requested address", "other", "bind"),
    (
        r"connect to host .*: (?:Permission denied|Operation not permitted)",
        "unreachable",
        "forbidden",
    ),
    (r"Network is unreachable", "unreachable", "no-route"),
    (r"open failed: (?:connect failed: )?open failed|Session open refused", "other", "no-session"),
)
# Only of the last line: ssh goes on after some that look the same.
_LAST: _Table = (
    (r"\A(?P<about>[/~][^:\n]*?):? line \d+: ", "other", "config"),
    (r"\ABad owner or permissions on (?P<about>/.+)\Z", "other", "config-mode"),
)
_EXPIRED = (
    r"(?i)password (?:has |is )?expired|(?:must|required to) change your password|"
    r"password change required|account has expired"
)
_NOT_EXECUTED = (
    r"^(?:\S+: (?:line )?\d+: )?exec: (?P<about>[/~]\S+): "
    r"(?:cannot execute|Permission denied|Exec format error|Operation not permitted)"
)
_DIED = (
    r"Fatal Python error|^Traceback |^\w*Error: |error while loading shared libraries|"
    r"Illegal instruction|Segmentation fault|status (?:132|134|135|137|139)\b"
)
# What the other side's shell says, or what stands in its place.
_OF_SHELL: _Table = (
    (_EXPIRED, "denied", "expired"),
    (r"(?i)please log ?in as the user [\"'](?P<about>[\w.-]+)[\"']", "shell", "wrong-user"),
    (r"This service allows sftp connections only", "shell", "sftp-only"),
    (r"not available|nologin|/bin/false", "shell", "nologin"),
    (_NOT_EXECUTED, "python", "not-executable"),
    # sshd's own words of the login shell. It asks for that file beforehand, but not where it
    # changes the root. Source: do_child of OpenSSH's session.c, allowed_user of its auth.c.
    (r"\A(?P<about>/\S+): (?:No such file or directory|Permission denied)\Z", "shell", "chroot"),
    (f"^{NO_INPUT}", "shell", "no-input"),
    (r"\brbash: |: restricted", "shell", "restricted"),
    (r"No space left on device|Disk quota exceeded", "shell", "full"),
    (_DIED, "python", "died"),
)


def told_failure(problem: YokedError) -> SshFailure:
    """What kept an agent from coming, by what was said of it."""
    if isinstance(problem, NoPythonError):
        cause = "no-place" if _NO_PLACE in problem.what else ""
        return SshFailure("python", problem.what, problem.fix, cause=cause)
    if not isinstance(problem, NoAgentError):
        cause = "no-ssh" if problem.what.endswith(_NO_SSH) else ""
        text = _NO_SSH if cause else problem.what
        return SshFailure("other", text, problem.fix, cause=cause)
    told = SshFailure(problem.kind, problem.said or problem.what, problem.fix)
    if problem.kind == "timeout":
        return told
    # Where ssh's reason is known, what a server greets with is none.
    table = (
        _OF_SHELL
        if problem.kind == "shell"
        else tuple(
            each for each in _OF_SSH if problem.kind in (each[1], "other") or each[2] == "jump"
        )
    )
    # All that was said may name what its last line does not.
    found = _read(told, told.text, table) or _read(told, problem.words, table)
    if found is None and problem.kind == "other":
        found = _read(told, told.text, _LAST)
    if found is not None and found.cause == "jump":
        # Who stands between has said first what is wrong.
        lines = (CONTROL.sub("", line).strip() for line in problem.words.splitlines())
        return replace(found, text=" / ".join(filter(None, lines))[:_LONGEST])
    return found or told


def _read(told: SshFailure, words: str, table: _Table) -> SshFailure | None:
    """What words say by a table; None: nothing that it has."""
    for pattern, kind, cause in table:
        if found := re.search(pattern, words, re.MULTILINE):
            about = CONTROL.sub("", found.groupdict().get("about") or "")
            return replace(
                told, kind=kind, text=_line_of(words, found), cause=cause, about=about.strip()
            )
    return None


def _line_of(words: str, found: re.Match[str]) -> str:
    begin = words.rfind("\n", 0, found.start()) + 1
    end = words.find("\n", found.end())
    return words[begin : len(words) if end < 0 else end].strip("\r@ ").removeprefix("debug1: ")


def wants_try(told: SshFailure, way: Way = Way()) -> bool:  # noqa: B008 - it is frozen
    """Whether one more try could tell more."""
    if told.kind not in ("shell", "python") and told.cause in ("", "jump") and way.hops:
        return True
    if told.cause == "jump":
        return bool(way.proxy)
    by_words = told.cause and (told.kind, told.cause) != ("shell", "sftp-only")
    return told.kind in ("timeout", "denied", "shell", "other", "host-key") and not by_words


def explained(told: SshFailure, way: Way, tried: Try, signs: Signs) -> SshFailure:
    """The failure, as far as one more try and other signs tell its cause.

    signs: as seen from here, or, for a failure that was explained already, from another host.
    """
    own = behind(tried.words, way) if way.proxy else tried.words
    if own is None and told.kind not in ("shell", "python"):
        found = _of_hop(told, way, tried) if way.hops else _of_program(told, way, tried)
        if found is not None:
            return found
    elif own is not None and way.hops:
        # What a jump host took says nothing of the host.
        tried = replace(tried, words=own)
    if told.kind == "host-key":
        return _of_host_key(told, tried)
    if told.kind in ("shell", "denied"):
        told = replace(told, user=way.user)
    if told.kind == "shell":
        return _of_shell(told, tried)
    if told.kind == "denied":
        return _of_login(told, way, tried)
    if told.kind == "other":
        return _of_end(told, way, tried)
    return _of_silence(told, way, tried, signs)


def stage_of(tried: Try, way: Way) -> Literal["", "connected", "spoken", "in"]:
    """How far a try came: nothing answered, TCP connected, the server said its name, logged in."""
    words = (behind(tried.words, way) or "") if way.hops else tried.words
    if _CAME_IN.search(words):
        return "in"
    if "Remote protocol version" in words:
        return "spoken"
    connected = "debug1: Connection established." in tried.words
    return "connected" if connected and not way.proxy else ""


def _of_hop(told: SshFailure, way: Way, tried: Try) -> SshFailure | None:
    """ssh came to no sshd of the host; its words are those of the jump hosts.

    None: they do not tell which of these it is.
    """
    words = f"{told.text}\n{tried.words}"
    passed = len(_CAME_IN.findall(tried.words))
    said = " / ".join(told_on_the_way(tried.words) or told_on_the_way(told.text))[:_LONGEST]
    if "administratively prohibited" in words:
        hop = way.hops[min(max(passed, 1), len(way.hops)) - 1]
        text = f"the jump host {hop} lets ssh in, and opens no connection on from there: {said}"
        return replace(told, kind="other", text=text, cause="jump-forbids", about=hop)
    if "open failed" in words:
        hop = way.hops[min(max(passed, 1), len(way.hops)) - 1]
        text = f"the jump host {hop} lets ssh in, and gets no way on from there: {said}"
        return replace(told, kind="other", text=text, cause="jump-on", about=hop)
    # ssh itself does not dial. Where nobody did, or nobody said why, it is not known who waits.
    if passed >= len(way.hops) or not said:
        return None
    hop = way.hops[passed]
    text = f"ssh does not come into the jump host {hop}: {said}"
    return replace(told, kind="other", text=text, cause="jump-in", about=hop)


def _of_program(told: SshFailure, way: Way, tried: Try) -> SshFailure | None:
    """ssh came to no sshd; its words are those of its ProxyCommand. None: they do not tell."""
    said = told_on_the_way(tried.words)
    # Where ssh got a socket of it, it has done its part.
    is_done = way.proxy == "socket" and "Local version string" in tried.words
    if not said or not way.program or is_done:
        return None
    # What stands behind the ? of an address often lets somebody in.
    shown = re.sub(r"(\w://[^\s?#]+)[?#]\S+", r"\1?...", " / ".join(said))
    words = without_secrets(shown)[:_LONGEST]
    named = f"the ProxyCommand of ssh here, `{way.program}`,"
    if any(way.program in line and _NOT_STARTED.search(line) for line in said):
        text = f"{named} does not start: {words}"
        return replace(told, kind="other", text=text, cause="proxy-gone", about=way.program)
    is_over = told.kind != "timeout"
    does = "ends before it leads there" if is_over else "waits, and leads nowhere"
    text = f"{named} {does}, and says: {words}"
    if any(map(_WANTS_PERSON.search, said)):
        return replace(told, text=text, cause="proxy-asks", about=way.program)
    if not is_over or told.kind != "other" or any(map(_OF_NETWORK.search, said)):
        return replace(told, text=text, cause="jump") if told.kind in ("other", "timeout") else None
    return replace(told, text=text, cause="proxy-ends", about=way.program)


def _of_host_key(told: SshFailure, tried: Try) -> SshFailure:
    """ssh does not know the host's key."""
    certified = _CERTIFIED.search(tried.words)
    is_unknown = "debug1: No matching CA found" in tried.words and not told.cause
    if not certified or not is_unknown or "HAS CHANGED" in tried.words:
        return told
    text = f"{told.text.rstrip('.')}; its certificate is signed by {certified[1]}"
    return replace(told, text=text, cause="authority", about=certified[1])


def _of_shell(told: SshFailure, tried: Try) -> SshFailure:
    """The login is through, and what starts there is not the agent."""
    if found := _KEY_OPTIONS.search(tried.words):
        return replace(told, cause="key-command", about=found[1])
    if told.cause:
        return told
    if tried.printed and (read := _read(told, tried.printed.strip(), _OF_SHELL)):
        return read
    # The shell ran something else, as it was told.
    return replace(told, kind="python", cause="died") if tried.started else told


def _of_login(told: SshFailure, way: Way, tried: Try) -> SshFailure:
    """It is known who comes, and he is not let in."""
    if told.cause:
        return told
    cause, about = _why_denied(tried.words, way)
    agent = f" at {way.agent}" if way.agent.startswith(("/", "~/")) else ""
    shown = {
        "key-mode": f"others may read the key {about}, so ssh passes over it",
        "stale-pub": f"{about}.pub is of another key than {about}, and ssh offers that one",
        "second-factor": "the key alone was a partial success",
        "certificate": f"the certificate {about} {dict(way.certificates).get(about)}",
        "key-gone": f"there is no {about}, which the settings of ssh name",
        "agent-lacks": "it is the public half of a key, and ssh finds no agent with the other one",
        "agent-refuses": f"the key agent{agent} refused to sign with the key {about}",
        "refused-cert": f"the key was {about}, and came with a certificate, too",
        **dict.fromkeys(("refused-key", "after-key", "unused-key"), f"the key was {about}"),
    }
    is_said = cause == "key-mode" and "too open" in told.text
    more = f"; {shown[cause]}" if about and cause in shown and not is_said else ""
    missing = _missing_of(tried.words, way)
    if missing and cause == "refused-key":
        more += f"; there is no {missing}, which the settings of ssh name"
    return replace(told, text=f"{told.text.rstrip('.')}{more}", cause=cause, about=about)


def _missing_of(words: str, way: Way) -> str:
    """A key that ssh's settings name, and that is not there; "": none."""
    return next((each for each in _NO_IDENTITY.findall(words) if each in way.gone), "")


def _why_denied(words: str, way: Way) -> tuple[str, str]:
    """The cause, and what it names: a key's file, its fingerprint, methods."""
    methods = _METHODS.findall(words)
    if not methods:
        return "", ""
    if (found := _TOO_OPEN.search(words)) and found[1] in way.loose:
        # The public half alone: the other one should be in an agent.
        return "agent-lacks" if found[1].endswith(".pub") else "key-mode", found[1]
    if "partial success" in words:
        return "second-factor", methods[-1]
    if "publickey" not in methods[0].split(","):
        return "keys-off", methods[0]
    if re.search(r"no mutual signature (?:algorithm|supported)", words):
        return "algorithm", ""
    accepted, offered = list(_ACCEPTED.finditer(words)), _OFFERED.findall(words)
    if accepted:
        return _why_not_signed(words[accepted[-1].end() :], accepted[-1][1], way)
    return _why_refused(words, offered, way) if offered else _why_none_offered(words, way)


def _why_refused(words: str, offered: list[str], way: Way) -> tuple[str, str]:
    """Why no key that was offered is taken."""
    kinds = [kind for each in offered if (kind := _kind_of(each))]
    taken = _SIGNATURES.findall(words)
    if kinds and taken and not any(_is_taken(kind, taken[-1]) for kind in kinds):
        return "algorithm", ""
    # ssh names the file of each key that it offers.
    stale = [each for each in way.stale if any(key.startswith(each) for key in offered)]
    if stale and len(stale) == len(offered):
        return "stale-pub", stale[0]
    plain = [each for each in offered if "-CERT SHA256:" not in each]
    has_certificate = len(plain) < len(offered)
    for path, flaw in way.certificates if has_certificate else ():
        if flaw:
            return "certificate", path
    prints = FINGERPRINT.findall("\n".join(plain or offered))
    cause = "refused-cert" if has_certificate else "refused-key"
    return cause, prints[0] if len(prints) == 1 else ""


def _why_none_offered(words: str, way: Way) -> tuple[str, str]:
    if way.locked:
        return "passphrase", way.locked[0]
    if missing := _missing_of(words, way):
        return "key-gone", missing
    return ("kept-keys" if way.is_files_only and _HAS_KEYS.search(words) else "no-key"), ""


def _why_not_signed(after: str, key: str, way: Way) -> tuple[str, str]:
    """Why a key that the server takes did not let in. after: what came then."""
    found = FINGERPRINT.search(key)
    shown = found[0] if found else ""
    if _METHODS.search(after) or re.search(r"^Connection (?:closed|reset) by", after, re.MULTILINE):
        return "after-key", shown
    if "agent refused operation" in after:
        return "agent-refuses", shown
    for path in way.locked:
        # ssh names the file of a key that no agent has.
        if key.startswith(path):
            return "passphrase", path
    return "unused-key", shown


def _kind_of(offered: str) -> str | None:
    found = re.search(r" (RSA|ECDSA|ED25519|ECDSA-SK|ED25519-SK) SHA256:", offered)
    return None if found is None else found[1]


def _is_taken(kind: str, algorithms: str) -> bool:
    names = {
        "RSA": r"rsa-sha2-(?:256|512)|ssh-rsa",
        "ECDSA": r"ecdsa-sha2-\w+",
        "ED25519": r"ssh-ed25519",
        "ECDSA-SK": r"(?:webauthn-)?sk-ecdsa-\S+",
        "ED25519-SK": r"sk-ssh-ed25519@\S+",
    }
    return any(re.fullmatch(names[kind], each) for each in algorithms.split(","))


def _of_end(told: SshFailure, way: Way, tried: Try) -> SshFailure:
    """ssh ended, for none of the common reasons."""
    if told.cause:
        return told
    words = f"{told.text}\n{tried.words}"
    if _OFFERED.search(tried.words) and not _CAME_IN.search(tried.words):
        return explained(replace(told, kind="denied"), way, tried, Signs())
    if not re.search(r"[Cc]onnection (?:closed|reset)|kex_exchange_identification|banner", words):
        return told
    if "Remote protocol version" in tried.words:
        return replace(told, cause="cut")
    return replace(told, cause="jump" if way.proxy == "command" else "closed")


def _of_silence(told: SshFailure, way: Way, tried: Try, signs: Signs) -> SshFailure:
    """Nothing came in time: from nobody, from the server, or from the shell."""
    stage = stage_of(tried, way)
    if told.kind == "refused":
        # A ban, or a firewall that answers in the server's place.
        open_to_others = signs.port in ("speaks", "closes", "mute")
        return _with(replace(told, cause="filtered"), signs.text) if open_to_others else told
    if stage == "in":
        return _of_late(told, way, tried)
    if tried.turn == "here":
        return _of_this_machine(told, tried, stage)
    if stage == "spoken":
        stuck = "its ssh server said its name, and the login got stuck"
        return _with(_with(replace(told, cause="large"), stuck), signs.text)
    if signs.large is False:
        return _with(replace(told, cause="large"), signs.text)
    if told.cause:
        return told
    if stage == "connected":
        mute = "its ssh port takes connections, and says nothing"
        return _with(_with(replace(told, cause="mute"), mute), signs.text)
    if way.proxy == "command" and not signs.is_on:
        return replace(told, cause="jump") if told.kind == "timeout" else told
    if not signs.is_on:
        return told
    is_mute = signs.port in ("closes", "mute") and told.kind == "timeout"
    return _with(replace(told, cause="mute" if is_mute else "filtered"), signs.text)


def _of_this_machine(told: SshFailure, tried: Try, stage: str) -> SshFailure:
    """ssh here has not dialled, or has not gone on although the host has done its part."""
    executed = EXECUTED.findall(tried.words)
    since = "before it has dialled" if not stage else "although the host has answered"
    if not stage and executed:
        line = f" (line {tried.place.rpartition(':')[2]})" if tried.place else ""
        text = f"ssh here waits for `{executed[-1]}`, a Match exec of its settings{line}, {since}"
        return replace(told, text=text, cause="asks", about=tried.place)
    if tried.is_dumb:
        text = "ssh here waits for its key agent, which takes questions and answers none"
        return replace(told, text=text, cause="agent")
    if tried.helpers:
        text = f"ssh here waits for `{tried.helpers[0]}`, {since}"
        return replace(told, text=text, cause="helper", about=tried.helpers[0])
    return replace(told, text=f"ssh here does not go on, {since}", cause="waits")


def _of_late(told: SshFailure, way: Way, tried: Try) -> SshFailure:
    """The login is through in time, and no agent came."""
    if not tried.started:
        shell = replace(
            told,
            kind="shell",
            text="ssh comes in, and no program started there in the "
            f"{tried.after_s:.0f} s that it was waited for",
            cause="",
            user=way.user,
        )
        found = _of_shell(shell, tried)
        return found if found.cause else replace(found, cause="hangs")
    if not tried.took:
        stuck = "ssh comes in and starts a program, and what is sent to it does not all arrive"
        return _with(replace(told, cause="large"), stuck)
    late = f"ssh comes in, and a small program starts after {tried.after_s:.0f} s"
    return _with(replace(told, cause="slow"), late)


def _with(told: SshFailure, evidence: str) -> SshFailure:
    return replace(told, text=f"{told.text}; {evidence}") if evidence else told


def lost(problem: YokedError, after_s: float) -> SshFailure:
    """An examination that was going on when the connection ended: nothing of it counts."""
    said = problem.said if isinstance(problem, NoAgentError) else ""
    words = f": {said}" if said else ""
    text = f"the connection ended after {after_s:.0f} s, in the middle of the examination{words}"
    return SshFailure("other", text, cause="ended")
