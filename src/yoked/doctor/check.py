"""What a check is: a question, the sentences of its finding, and a pure function that answers it.

    @check(
        "open-files",
        question="May a process hold enough files open?",
        saw="a process of {host} may hold {soft} files open; a rank needs about {needed}",
        ...
    )
    def open_files(seen: Examination) -> Iterator[Match]:
        for host in seen.up:
            ...
            yield Match(host.name, *lift(host, "n"), soft=24, needed=184)

The function tells places and figures; the sentences stand above it, once.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yoked.records.examination import Examination, Finding, Fix, Severity
from yoked.units import format_bit_per_s, format_bytes, format_duration, listed, plural

# A sentence, with a `{name}` for each parameter, and `{name:bytes}` and the like for a unit; or
# several by the word that a match gives as `how`.
Text = str | Mapping[str, str]


class Match:
    """A place where something is wrong, for the check that looked.

    hosts: those to mend, the first first; one name or several. severity: None: the check's.
    how: which of the check's sentences fits, where it has several. reaches: other hosts whose
    trouble may come of it. params: what they name; `host` (the first), `source` and `target` (of
    the link) are known without.
    """

    def __init__(
        self,
        hosts: str | Iterable[str],
        *fix: Fix,
        link: tuple[str, str] | None = None,
        severity: Severity | None = None,
        how: str = "",
        reaches: Iterable[str] = (),
        **params: object,
    ) -> None:
        self.hosts = (hosts,) if isinstance(hosts, str) else tuple(hosts)
        self.fix, self.link, self.severity, self.how = fix, link, severity, how
        self.reaches = tuple(reaches)
        # What is read once only, as a generator is, becomes a tuple.
        self.params = {
            name: tuple(value)
            if isinstance(value, Iterable) and not isinstance(value, str)
            else value
            for name, value in params.items()
        }  # fmt: skip


Look = Callable[[Examination], Iterable[Match]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    code: as in `--explain CODE` and docs/reference/checks.md. question: what it answers, in one
    line. reads: for people ("facts", "health.limits", "dials"). severity: the gravest finding
    that it can make. saw: the evidence; why: what follows if it stays. page: what checks.md says
    of it, Markdown. explains: codes whose findings on the same hosts or link follow from this
    one's.
    quick: whether it has what it reads in the quick form.
    """

    code: str
    question: str
    reads: tuple[str, ...]
    severity: Severity
    saw: Text
    why: Text
    page: str
    look: Look
    explains: tuple[str, ...] = ()
    quick: bool = False

    def run(self, seen: Examination) -> Iterator[Finding]:
        """What is found in an examination, in words."""
        for match in self.look(seen):
            source, target = match.link or ("", "")
            known = {"host": match.hosts[0] if match.hosts else "", "source": source,
                     "target": target, **match.params}  # fmt: skip
            yield Finding(
                self.code,
                match.severity or self.severity,
                match.hosts,
                saw=render(self.saw, match.how, known),
                why=render(self.why, match.how, known),
                fix=match.fix,
                link=match.link,
                reaches=match.reaches,
            )


def check(
    code: str,
    *,
    question: str,
    reads: tuple[str, ...],
    severity: Severity,
    saw: Text,
    why: Text,
    symptom: str,
    cause: str,
    fix: str,
    on_cluster: str = "",
    explains: tuple[str, ...] = (),
    quick: bool = False,
) -> Callable[[Look], Check]:
    """Make a check of the function that looks. What is named as in Check is as there.

    symptom: what a person meets, in torch's or the shell's words. fix: what its lines do.
    on_cluster: how the same looks on Slurm, Kubernetes or with NCCL, where it does.
    """
    parts = {"Symptom": symptom, "Cause": cause, "Fix": fix, "On a cluster": on_cluster}
    page = "\n\n".join(f"**{name}.** {text}" for name, text in parts.items() if text)

    def of(look: Look) -> Check:
        return Check(
            code=code, question=question, reads=reads, severity=severity, saw=saw, why=why,
            page=page, look=look, explains=explains, quick=quick,
        )  # fmt: skip

    return of


def render(text: Text, how: str, params: Mapping[str, object]) -> str:
    """A sentence with its parameters. Raises KeyError where one is missing."""
    return _WORDS.vformat(text if isinstance(text, str) else text[how], (), params)


class _Words(string.Formatter):
    """str.format with units: `{size:bytes}`, `{took:duration}`, `{rate:bit/s}`, `{names:list}`,
    `{count:plural rank}`.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "list":
            return listed(map(str, value))
        if format_spec.startswith("plural "):
            return plural(value, format_spec.removeprefix("plural "))
        unit = _UNITS.get(format_spec)
        return unit(value) if unit else str(super().format_field(value, format_spec))


_UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "duration": format_duration,
    "bit/s": format_bit_per_s,
}
_WORDS = _Words()
