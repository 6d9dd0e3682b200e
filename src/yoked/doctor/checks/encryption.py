"""What hosts of a run need to know and to reach each other in secret: certificates, TLS 1.3."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import at, mapping
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, Fix


@check(
    "encryption",
    question="Can this machine make the certificates of a run, and every host speak TLS 1.3?",
    reads=("controller", "torch"),
    severity="error",
    saw={
        "certificates": "this machine cannot make the certificates of a run: {error}",
        "tls": "the settings of OpenSSL on {host} allow nothing newer than {most} ({file})",
    },
    why={
        "certificates": "hosts of a run know each other by them: each launch on several hosts ends "
        "so",
        "tls": "hosts of a run speak TLS 1.3 alone to each other: none would reach this one",
    },
    symptom="`openssl req failed: ...`, as soon as a launch has sent the program; or "
    "`NO_PROTOCOLS_AVAILABLE`, and a launch that waits for a launcher to reach another.",
    cause="There is no program openssl here, or the first in PATH (of conda, say) cannot start; or "
    "OPENSSL_CONF names a file that it cannot read. MaxProtocol in a host's openssl.cnf, once set "
    "for an old server; it counts for all programs.",
    fix="By hand. MaxProtocol: take that line out, or have a file of its own for the program that "
    "needs it (OPENSSL_CONF).",
    explains=("world-failed",),
)
def encryption(seen: Examination) -> Iterator[Match]:
    if error := at(seen.controller, "certificates"):
        yield Match((), _mend_openssl(seen, str(error)), how="certificates", error=error)
    for host in seen.up:
        told = mapping(host.torch)
        if most := told.get("tls_most"):
            file = told.get("tls_file") or "openssl.cnf"
            out = by_hand(host.name, "take MaxProtocol out of {file}", file=file)
            shown = str(most).replace("TLSv", "TLS ").replace("_", ".")
            yield Match(host.name, out, how="tls", most=shown, file=file)


def _mend_openssl(seen: Examination, error: str) -> Fix:
    if "ulimit" in error:
        return by_hand("", "ulimit -n 1024    in this shell, then look again")
    if program := at(seen.controller, "openssl"):
        return by_hand(
            "",
            "`{program} version` shows whether it starts: mend it, or take its folder out of PATH "
            "so that another is found; `env -u OPENSSL_CONF -u LD_LIBRARY_PATH {program} version` "
            "tells whether one of these variables is to blame",
            program=program,
        )
    return by_hand("", "install openssl, and see that its folder is in PATH")


CHECKS = (encryption,)
