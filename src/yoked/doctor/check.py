"""What a check is: a question, and a pure function that answers it from an examination."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from yoked.records.examination import Examination, Finding, Severity


@dataclass(frozen=True)
class Check:
    """One check.

    name: as in `--explain NAME` and docs/checks.md. question: what it answers, in one line.
    needs: what it reads, for people ("facts", "health.limits", "dials"). severity: the gravest
    finding that it can make. quick: whether it has what it needs in the quick form. explains:
    names of checks whose findings on the same hosts or link follow from this one's. page: what
    docs/checks.md says of it: symptom, cause, what the fix does; Markdown.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    severity: Severity
    page: str
    run: Callable[[Examination], Iterable[Finding]]
    explains: tuple[str, ...] = ()
    quick: bool = False


def page(*, symptom: str, cause: str, fix: str, elsewhere: str = "") -> str:
    """The page of a check, as Markdown.

    symptom: what a person meets, in torch's or the shell's words; elsewhere: how the same looks
    on Slurm, Kubernetes or with NCCL, where it does.
    """
    parts = {"Symptom": symptom, "Cause": cause, "Fix": fix, "On a cluster": elsewhere}
    return "\n\n".join(f"**{name}.** {text}" for name, text in parts.items() if text)
