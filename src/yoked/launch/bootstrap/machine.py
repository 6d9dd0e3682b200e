"""What holds this host's processors back, for whoever asks why its ranks are slow.

Costs 2 ms of a core every ten seconds on 16 cores, and every two while a rank of this host is slow,
with 25 us for each process besides. An older kernel sleeps up to 10 ms for each clock that it has
not measured lately. Standard library alone.
Source: cgroups(7), proc_stat(5), proc_vmstat(5), the kernel's cpu-freq and thermal documentation.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from yoked.agent.ask import named_values, number, text
from yoked.agent.facts import on_battery
from yoked.agent.processors import CGROUPS, CPUS, own_groups
from yoked.core.proc import LAUNCH_VARIABLE, ProcessId
from yoked.diagnosis.vitals import Machine

_USUAL_S, _SLOW_S = 10.0, 2.0
# Rates over less are chance.
_LEAST_S = 1.0
# Of a core: what uses less slows nobody down.
_BUSY = 0.1
_NAME_CHARACTERS = 32


@dataclass(frozen=True)
class _Counts:
    """So far: periods of our control groups, and those in which a limit stopped them; ticks of all
    cores, those that another machine took, those in which there was work; times that a core slowed
    down as it was hot; bytes from and to the swap; CPU seconds by process, with its name.
    """

    at_s: float
    periods: tuple[tuple[int, int], ...]
    worked: int
    stolen: int
    hot: int | None
    swapped_bytes: int | None
    programs: dict[ProcessId, tuple[str, float]] | None


class MachineLooker:
    """Looks at this host again and again. launch_id: what is of it is no other program."""

    def __init__(
        self,
        launch_id: str,
        *,
        proc: Path = Path("/proc"),
        cpus: Path = CPUS,
        cgroups: Path = CGROUPS,
        supplies: Path = Path("/sys/class/power_supply"),
    ) -> None:
        self._launch_id = launch_id
        self._proc, self._cpus, self._cgroups, self._supplies = proc, cpus, cgroups, supplies
        self._before: _Counts | None = None
        self._seen: Machine | None = None

    def look(self, now_s: float, *, slow: bool) -> Machine | None:
        """What was seen last, looked up anew when it is time to; None: it is too early.

        slow: a rank of this host is slow, so it is time to more often.
        """
        before = self._before
        wants_programs = slow and before is not None and before.programs is None
        period_s = _LEAST_S if wants_programs else _SLOW_S if slow else _USUAL_S
        if before is None or now_s - before.at_s >= period_s:
            self._before = self._counts(now_s, programs=slow)
            if before is not None:
                self._seen = self._machine(before, self._before)
        return self._seen

    def _counts(self, now_s: float, *, programs: bool) -> _Counts:
        groups = own_groups(self._proc, self._cgroups, "cpu")
        told = [named_values(text(folder / "cpu.stat"), " ") for folder in groups]
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = [*map(int, text(self._proc / "stat").partition("\n")[0].split()[1:9]), *([0] * 8)]
        hot = [
            count
            for path in self._cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
            if (count := number(path)) is not None
        ]
        pages = named_values(text(self._proc / "vmstat"), " ")
        swapped = [int(pages[name]) for name in ("pswpin", "pswpout") if name in pages]
        return _Counts(
            now_s,
            tuple((int(one["nr_periods"]), int(one["nr_throttled"])) for one in told
                  if "nr_periods" in one and "nr_throttled" in one),
            sum(ticks[:3]) + sum(ticks[5:8]),
            ticks[7],
            sum(hot) if hot else None,
            sum(swapped) * os.sysconf("SC_PAGE_SIZE") if swapped else None,
            _programs(self._proc) if programs else None,
        )  # fmt: skip

    def _machine(self, then: _Counts, now: _Counts) -> Machine:
        took_s = now.at_s - then.at_s
        clocks = _clocks(self._cpus)
        program, cores = self._busiest(then, now)
        return Machine(
            limited=_limited(then.periods, now.periods),
            stolen=max(0, now.stolen - then.stolen) / max(1, now.worked - then.worked),
            clock_hz=max((clock for clock, _ in clocks), default=None),
            most_hz=max((most for _, most in clocks), default=None),
            hot=_grown(then.hot, now.hot, took_s),
            on_battery=on_battery(self._supplies),
            swapped_bytes_per_s=_grown(then.swapped_bytes, now.swapped_bytes, took_s),
            program=program,
            program_cores=cores,
        )

    def _busiest(self, then: _Counts, now: _Counts) -> tuple[str, float]:
        """The program beside the run that used the most, by its name, and how many cores."""
        if then.programs is None or now.programs is None:
            return "", 0.0
        cores: dict[str, float] = defaultdict(float)
        for process, (name, cpu_s) in now.programs.items():
            # One that began since had used nothing.
            used = (cpu_s - then.programs.get(process, ("", 0.0))[1]) / (now.at_s - then.at_s)
            if used >= _BUSY and process.pid != os.getpid() and not self._is_ours(process):
                cores[name] += used
        return max(cores.items(), key=lambda each: each[1], default=("", 0.0))

    def _is_ours(self, process: ProcessId) -> bool:
        return process.environment().get(LAUNCH_VARIABLE) == self._launch_id


def _limited(then: Iterable[tuple[int, int]], now: Iterable[tuple[int, int]]) -> float | None:
    """Share of the periods in which a limit stopped a group of ours; None: there is no group."""
    shares = [
        (throttled - throttled_then) / max(1, periods - periods_then)
        for (periods_then, throttled_then), (periods, throttled) in zip(then, now, strict=False)
    ]
    return max(0.0, min(1.0, max(shares))) if shares else None


def _grown(then: int | None, now: int | None, took_s: float) -> float | None:
    return None if then is None or now is None else max(0, now - then) / took_s


def _clocks(cpus: Path) -> list[tuple[float, float]]:
    """Hz now and at most, of the cores that tell: that of an idle one may be low at any time."""
    folders = cpus.glob("cpufreq/policy*")
    told = [
        (number(each / "scaling_cur_freq"), number(each / "cpuinfo_max_freq")) for each in folders
    ]
    return [(1e3 * clock, 1e3 * most) for clock, most in told if clock and most]


def _programs(proc: Path) -> dict[ProcessId, tuple[str, float]]:
    """Name and CPU seconds of every process. A name is anybody's text."""
    found = {}
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for folder in proc.glob("[0-9]*"):
        # It may end meanwhile.
        with contextlib.suppress(ValueError, IndexError):
            name, _, rest = text(folder / "stat").partition("(")[2].rpartition(")")
            fields = rest.split()
            cpu_s = (int(fields[11]) + int(fields[12])) / ticks_per_s
            found[ProcessId(int(folder.name), int(fields[19]))] = (name[:_NAME_CHARACTERS], cpu_s)
    return found
