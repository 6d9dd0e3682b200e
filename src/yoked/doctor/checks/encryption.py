"""What hosts of a run need to know and to reach each other in secret: certificates, TLS 1.3."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import at, mapping
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination


@check(
    "tls",
    question="May every host speak TLS 1.3?",
    reads=("torch",),
    severity="error",
    saw="the settings of OpenSSL on {host} allow nothing newer than {most} ({file})",
    why="hosts of a run speak TLS 1.3 alone to each other: none would reach this one",
    symptom="`NO_PROTOCOLS_AVAILABLE`, or a launch that waits for a launcher to reach another.",
    cause="MaxProtocol in openssl.cnf, once set for an old server; it counts for all programs.",
    fix="By hand: take that line out, or have a file of its own for the program that needs it "
    "(OPENSSL_CONF).",
    explains=("world-failed",),
)
def tls(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        if most := told.get("tls_most"):
            file = told.get("tls_file") or "openssl.cnf"
            yield Match(
                host.name,
                by_hand(host.name, "take MaxProtocol out of {file}", file=file),
                most=str(most).replace("TLSv", "TLS ").replace("_", "."),
                file=file,
            )


@check(
    "certificates",
    question="Can this machine make the certificates of a run?",
    reads=("controller",),
    severity="error",
    saw="this machine cannot make the certificates of a run: {error}",
    why="hosts of a run know each other by them: each launch on several hosts ends so",
    symptom="`openssl req failed: ...`, as soon as a launch has sent the program.",
    cause="There is no program openssl, or the first in PATH (of conda, say) cannot start; or "
    "OPENSSL_CONF names a file that it cannot read.",
    fix="By hand.",
)
def certificates(seen: Examination) -> Iterator[Match]:
    error, program = (at(seen.controller, each) for each in ("certificates", "openssl"))
    if not error:
        return
    if "ulimit" in str(error):
        fix = by_hand("", "ulimit -n 1024    in this shell, then look again")
    elif program:
        fix = by_hand(
            "",
            "`{program} version` shows whether it starts: mend it, or take its folder out of PATH "
            "so that another is found; `env -u OPENSSL_CONF -u LD_LIBRARY_PATH {program} version` "
            "tells whether one of these variables is to blame",
            program=program,
        )
    else:
        fix = by_hand("", "install openssl, and see that its folder is in PATH")
    yield Match((), fix, error=error)


CHECKS = (certificates, tls)
