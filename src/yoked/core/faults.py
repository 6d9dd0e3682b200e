"""Expected failures that a script, or another part of yoked, may want to tell apart: by code.

    raise fault("torch-missing", host=host.name)

The sentences stand here, once. Agents send code and parameters, and the controller makes the
sentences; `--json` has both. A code is an interface: docs/reference/errors.md has it, and it is
never given to another failure. Where a check of the doctor finds the same, both have one code.
An error that is not here has the code of its kind (errors.py): its sentence stands where it is
raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from yoked.core.names import path_word
from yoked.errors import CheckpointError, FleetError, HostError, YokedError


class Fault:
    """An expected failure. what, fix: sentences, with a `{name}` for each parameter."""

    # No dataclass: the agent starts without that module.
    def __init__(self, kind: type[YokedError], what: str, fix: tuple[str, ...] = ()) -> None:
        self.kind, self.what, self.fix = kind, what, fix


def fault(code: str, /, **params: object) -> YokedError:
    """The error of a code, with its sentences. Raises KeyError for a parameter that they lack."""
    known = {name: _plain(value) for name, value in params.items()}
    words = {name: path_word(str(known[name])) for name in known.keys() & _PATHS}
    text = FAULTS[code]
    error = text.kind(
        text.what.format(**known), fix=tuple(line.format(**known | words) for line in text.fix)
    )
    error.code, error.params = code, known
    return error


def told_fault(code: object, params: object) -> YokedError | None:
    """The error that another process names; None: this version knows no such one."""
    if not isinstance(code, str) or code not in FAULTS or not isinstance(params, Mapping):
        return None
    try:
        return fault(code, **params)
    except (KeyError, TypeError, ValueError):
        return None


def _plain(value: object) -> str | int | float | None:
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


# Parameters that are paths: a line of `fix` has each as one word of a shell.
_PATHS = frozenset({"path", "folder", "parent", "python"})
_LOOK = ("something on {host} is not as it should be: look at it with `ssh {host}`",)

FAULTS: Mapping[str, Fault] = {
    "agent-ended": Fault(
        HostError,
        "{host} closed the agent's connection",
        ("ssh {host} true",),
    ),
    "cache-emptied": Fault(
        HostError,
        "{source} is gone: somebody emptied the cache meanwhile",
        ("run the same command again",),
    ),
    "cost-unmeasured": Fault(
        YokedError,
        "what a training step costs was not measured on {names}",
        (
            "yoked probe    says why",
            "yoked install    where torch is missing",
        ),
    ),
    "container-bridge": Fault(
        HostError,
        "{host} is a container of {container}, and {address} ({interface}) is of a bridge on its "
        "own machine: no other host reaches it",
        ("start the container again with `{container} run --network=host`, sshd at a free port",),
    ),
    "disk-full": Fault(
        HostError,
        "{path}: the disk is full: {needed}{free:,} bytes are free",
        ("df -h {folder}    there; free some space, then run the command again",),
    ),
    "disk-full-here": Fault(
        YokedError,
        "{here}: {needed} more needed, {free} are free there",
        ("free space on that disk, or name another --runs-dir",),
    ),
    "dtype-unmeasured": Fault(
        YokedError,
        "no dtype was measured on all of {names}",
        (
            "yoked probe",
            "or leave --dtype out",
        ),
    ),
    "extra-missing": Fault(
        YokedError,
        "this command needs {package}, which this yoked was installed without",
        ("{install}", "or make an environment for it on this machine: yoked install --host ."),
    ),
    "families": Fault(
        HostError,
        "the hosts have no address family in common: {host} has no IPv{version} address that "
        "Gloo would take, and others have no other",
        ("give {host} an IPv{version} address in the network of the others",),
    ),
    "file-changes": Fault(
        HostError,
        "{host}: {path} does not arrive whole",
        ("does it change while it is sent? then wait, and try again",),
    ),
    "file-grew": Fault(
        HostError,
        "{path} on {host} is larger than the {most_bytes:,} bytes that it may have",
        ("once more: it may have been replaced meanwhile",),
    ),
    "fleet-exists": Fault(
        FleetError,
        "{path} is there already, and may be somebody's work",
        (
            "yoked hosts --fleet {path}    shows its hosts",
            "--force    keeps it as {kept}, and takes over ranks, device and python",
        ),
    ),
    "fleet-missing": Fault(
        FleetError,
        "there is no file {path}",
        ("yoked init HOST... --fleet {path}    writes it",),
    ),
    "fleet-unmeasured": Fault(
        YokedError,
        "fleet {fleet} has not been measured yet, as its hosts are now",
        (
            "yoked probe{flag}",
            "or look at a fleet that is stated: --simulate two-laptops",
        ),
    ),
    "fleet-unreadable": Fault(
        FleetError,
        "{path} cannot be read: {reason}",
        ("ls -l {path}",),
    ),
    "fleet-unwritable": Fault(
        FleetError,
        "the fleet's file {path} cannot be written: {reason}",
        ("name another with --fleet FILE",),
    ),
    "folder-foreign": Fault(
        YokedError,
        "{folder} is no folder of yours: another user's, or a link, which may lead anywhere",
        (
            "ls -ld {folder}",
            "set XDG_RUNTIME_DIR to a folder of your own",
        ),
    ),
    "folder-taken": Fault(
        HostError,
        "{folder} is there already",
        ("take another name for the run, or `yoked clean` if the run is over",),
    ),
    "host-exhausted": Fault(
        HostError,
        "the host gives no more memory or threads ({problem}): {why}",
        (
            "take out `ulimit -v` and `ulimit -u` from the shell's start files on that host",
            "where it is a filter: renew Docker (20.10.10), and libseccomp (2.5.2), around it",
        ),
    ),
    "install-running": Fault(
        HostError,
        "another `yoked install` is at work on {folder}",
        ("wait until it is done, then run the same command again",),
    ),
    "install-silent": Fault(
        HostError,
        "{host} ended without a word",
        ("yoked install --host {host}",),
    ),
    "interface-gone": Fault(
        FleetError,
        "{host}: there is no interface {interface} that is up; there are: {there}",
        (
            "mend `interface` of {host} in the fleet's file, or remove it",
            "yoked init --force    with all hosts: finds out anew which they can use",
        ),
    ),
    "link-dead": Fault(
        HostError,
        "next to nothing of what {source} sent arrived at {where}",
        ("look at the link's losses: on {host}, ip -s link show {interface}",),
    ),
    "link-idle": Fault(
        YokedError,
        "the link from {source} to {target} carried nothing",
        ("yoked probe",),
    ),
    "link-lost": Fault(
        HostError,
        "{source} lost its connection to {where}: {reason}",
        (
            "yoked hosts    shows which of them are up",
            "yoked probe",
        ),
    ),
    "link-unmeasured": Fault(
        YokedError,
        "the link from {source} to {target} was not measured",
        ("yoked probe    says why",),
    ),
    "log-damaged": Fault(
        YokedError,
        "{path}:{number} is not JSON: {problem}",
        ("remove line {number}; yoked appends whole lines only",),
    ),
    "log-full": Fault(
        YokedError,
        "{path} takes no more lines: {problem}",
        ("free space on the disk of {parent}",),
    ),
    "measurement-unwritable": Fault(
        YokedError,
        "the measurement cannot be kept in {path}: {reason}",
        ("free space there, or set YOKED_STATE to another folder",),
    ),
    "no-address": Fault(
        HostError,
        "{host}: interface {interface} has no address that Gloo could use",
        ("look at it with `ssh {host} ip address`; then yoked init --force",),
    ),
    "no-answer": Fault(
        HostError,
        "{host} gave no answer to {name!r} in {timeout_s:g} s",
        ("ssh {host} uptime",),
    ),
    "no-checkpoint": Fault(
        CheckpointError,
        "run {name} on {host} has no checkpoint yet",
        ("yoked logs {name}",),
    ),
    "nat": Fault(
        HostError,
        "{host} is Linux inside Windows (WSL2), and its address {address} is behind a NAT: no "
        "other host reaches it",
        (
            "in Windows, in %UserProfile%\\.wslconfig below `[wsl2]`: networkingMode=mirrored",
            "then `wsl --shutdown`",
        ),
    ),
    "no-ctypes": Fault(
        HostError,
        "{python} was built without ctypes, and cannot tell this host's addresses",
        ("install the system's own python3 there",),
    ),
    "no-interface": Fault(
        HostError,
        "{host} has no interface with an address that others could dial",
        ("connect {host} to the network of the others; `ssh {host} ip address` lists what it has",),
    ),
    "no-metrics": Fault(
        YokedError,
        "{folder} has no metrics.jsonl, so there is no loss to draw",
        ("name a run that has trained",),
    ),
    "no-proc": Fault(
        HostError,
        "{host} cannot be a host of a run yet: it has no /proc, by which what is supervised is "
        "recognised; and on macOS Gloo's transport does not connect to Linux's",
        (
            "yoked train --fleet .    there trains on it alone",
            "leave it out of the fleet's file: it can start, follow and stop runs of other hosts",
        ),
    ),
    "odd-answer": Fault(
        HostError,
        "{host}: its agent's answer to {name!r} is none that yoked's agent gives: {why}",
        _LOOK,
    ),
    "odd-content": Fault(
        HostError,
        "{host}: {what} is not in the form in which yoked writes it: {problem}",
        _LOOK,
    ),
    "odd-dials": Fault(
        HostError,
        "{source} was to dial {targets} addresses, and tells of {answers}",
        ("ssh {source}    find out who answers there",),
    ),
    "odd-echoes": Fault(
        HostError,
        "{source} was to send {echoes} echoes to {where}, and tells of {told}",
        ("ssh {source}    find out who answers there",),
    ),
    "odd-message": Fault(
        HostError,
        "{host}: its agent said what is no message, so the connection was closed: {why}",
        _LOOK,
    ),
    "openssl-missing": Fault(
        YokedError,
        "there is no program openssl here: it makes the certificates by which the hosts of a "
        "run know each other",
        ("{install}",),
    ),
    "output-lost": Fault(
        YokedError,
        "what this command prints cannot be written: {reason}",
        ("free space where its output goes, or send it elsewhere; what it did is done",),
    ),
    "other-answers": Fault(
        HostError,
        "{source} reached {answered_by} instead of {where}",
        ("two machines have that address: give one of them another",),
    ),
    "program-missing": Fault(
        HostError,
        "{program} cannot be started: {reason}",
        ("is it installed there, and spelt like that?",),
    ),
    "python-broken": Fault(
        HostError,
        "{host}: {python} does not start: {said}",
        (
            "yoked doctor    finds out which variable, or which file that it reads, is in its way",
            "it must be Python 3.11 or newer: yoked hosts",
        ),
    ),
    "python-missing": Fault(
        HostError,
        "{host}: there is no {python}, which the fleet's file names as its python",
        ("mend `python` of {host} in the fleet's file, or remove it: yoked install --host {host}",),
    ),
    "python-silent": Fault(
        HostError,
        "{host}: {python} does not say what it has",
        ("ssh {host} true",),
    ),
    "requirements-unknown": Fault(
        YokedError,
        "what yoked needs is not known: it is not installed, and {file} does not say",
        ("{install}    here",),
    ),
    "run-too-many-files": Fault(
        HostError,
        "{host} lists {files:,} files of a run; {most:,} are the most",
        ("ssh {host}    find out who answers there",),
    ),
    "same-machine": Fault(
        FleetError,
        "{other} and {name} are one machine ({hostname}): its ranks would share one CPU and "
        "be taken for two hosts",
        ("leave {name} out; for more ranks there, write `ranks = 2` for {other}",),
    ),
    "ssh-config-missing": Fault(
        FleetError,
        "{path}: there is no file {ssh_config}",
        ("take ssh_config out of it, or name the file that is meant",),
    ),
    "torch-missing": Fault(
        HostError,
        "{host}: no Python there has torch",
        ("yoked install --host {host}",),
    ),
    "transfer-damaged": Fault(
        HostError,
        "a file arrived with other content than its hash says ({digest}): it was changed "
        "while it was sent, or is damaged where it came from",
        ("run the same command again; if it stays so, make the file anew",),
    ),
    "venv-missing": Fault(
        HostError,
        "Python {version} cannot make virtual environments here: it has no ensurepip",
        ("{install}    there",),
    ),
    "wheels-not-found": Fault(
        HostError,
        "{host}: its wheels cannot be fetched here either:\n{said}",
        (
            "is this machine online, and does `{python} -m pip --version` work?",
            "or take a Python there that has them: yoked install --host {host} --python PATH",
        ),
    ),
    "wheels-unknown": Fault(
        HostError,
        "which wheels fit {system} with {libc} is not known",
        ("make an environment there by hand, and name its python in the fleet's file",),
    ),
    "write-failed": Fault(
        HostError,
        "{path} cannot be written: {reason}",
        ("ls -ld {parent}    there shows whose it is",),
    ),
    "wsl-firewall": Fault(
        HostError,
        "{host} is Linux inside Windows, and nothing gets in at {address}: Windows' firewall for "
        "virtual machines stands before it",
        (
            (
                "in a PowerShell of Windows, as administrator: New-NetFirewallHyperVRule -Name "
                "yoked -DisplayName yoked -Direction Inbound -Action Allow -VMCreatorId "
                "'{creator}' -RemoteAddresses {sources}"
            ),
        ),
    ),
}
