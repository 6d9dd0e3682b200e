"""What a host of a run says of itself twice a second, for whoever tells why a run stands.

Ages and no times of day: hosts' clocks differ. All of it comes from another host, so it is decoded
by its types (core/schema.py). Standard library alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from yoked.core.schema import Amount, Constraint, Count

Text = Annotated[str, Constraint("at most 400 characters", lambda text: len(text) <= 400)]
Age = Annotated[float, Constraint("at least 0", lambda age_s: 0 <= age_s < 1e9)]


@dataclass(frozen=True)
class Frame:
    """A line of a Python stack."""

    file: Text
    line: Count
    function: Text


@dataclass(frozen=True)
class Flight:
    """A collective, or a message between two ranks, that has begun and has not ended."""

    number: Count
    op: Text


@dataclass(frozen=True)
class Group:
    """A process group: collectives begun since the start, and those in flight. calls: the last that
    were begun, the oldest first; told of one group.
    """

    name: Text
    started: Count
    flying: tuple[Flight, ...] = ()
    calls: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Awaited:
    """What the trainer waits for. ranks: whose message; empty: all ranks'."""

    what: Text
    ranks: tuple[int, ...]
    age_s: Age


@dataclass(frozen=True)
class Trained:
    """The parameters that an optimizer of a rank trains, as the rank holds them.

    layout: of their shapes and dtypes. elements, largest: in all, and of the largest of them.
    sums: a step of this optimizer, and the checksum of a sample of the parameters after it; step 0
    is before the first.
    """

    layout: Count
    elements: Count
    largest: Count
    sums: tuple[tuple[Count, Count], ...] = ()


@dataclass(frozen=True)
class Learning:
    """How a rank of somebody's program learns (launch/bootstrap/learning.py).

    group: whose the default process group is; none: there is none. floats, wholes: the most
    elements that one call of torch.distributed carried so far, of real and of whole numbers; None:
    nobody can tell. libraries: of those that train, what it has loaded. other_ways: it has one
    loaded by which ranks could share beside torch.distributed.
    """

    optimizers: tuple[Trained, ...]
    group: Literal["none", "bootstrap", "program"]
    floats: Count | None
    wholes: Count | None
    libraries: tuple[Text, ...] = ()
    other_ways: bool = False


@dataclass(frozen=True)
class Recorded:
    """What a rank recorded of itself (ranks/recorder.py).

    age_s: of the record; a rank that cannot run Python writes none. steps, stepped_age_s: taken,
    and since the last. phase: as the trainer says; None: of a program that says nothing.
    frames: of the main thread, the innermost first; frames_age_s: since it stands there.
    groups: None: nothing is known of them. traced: a debugger of Python's is at work. step_s,
    step_cpu_s: of its last steps, and of a core that its threads used in them, the oldest first.
    learning: None: no optimizer has stepped, or the program is not watched for that.
    """

    age_s: Age
    steps: Count
    stepped_age_s: Age
    phase: Text | None
    awaits: Awaited | None
    frames: tuple[Frame, ...]
    frames_age_s: Age
    groups: tuple[Group, ...] | None
    traced: bool = False
    step_s: tuple[Age, ...] = ()
    step_cpu_s: tuple[Age, ...] = ()
    learning: Learning | None = None


@dataclass(frozen=True)
class RankVitals:
    """A rank as its host sees it.

    state: the kernel's letter (proc_pid_stat(5)): R runs, S waits, D waits for a disk or mount, T
    is stopped, t is traced. cpu_s: used so far; delayed_s: in which its threads could run and had
    no core. main_cpu_s, main_delayed_s: the same of its main thread; None: the kernel does not
    count. waits_in: the kernel's function where it waits, or empty. gpu: it has a GPU open.
    memory_bytes: that cannot be read again from a file, swapped or not; 0: not known.
    """

    rank: Count
    pid: Count
    state: Text
    cpu_s: Age
    recorded: Recorded | None
    waits_in: Text = ""
    delayed_s: Age = 0.0
    main_cpu_s: Age | None = None
    main_delayed_s: Age = 0.0
    gpu: bool = False
    memory_bytes: Count = 0


@dataclass(frozen=True)
class Ended:
    """A rank that has ended. exit_code: negative for a signal. learning: as it recorded it last."""

    rank: Count
    exit_code: int
    age_s: Age
    learning: Learning | None = None


@dataclass(frozen=True)
class LinkVitals:
    """The connections of this host's ranks to another host's, together.

    unread_bytes: arrived, and not taken by the ranks here. unsent_bytes: given, and not
    acknowledged. backoff: the most that a retransmission timer was doubled. sent_bytes,
    received_bytes, and packets sent (segments), sent again and arrived: so far. acked_age_s,
    heard_age_s: since anything was acknowledged, and since data came.
    """

    node: Count
    connections: Count
    unread_bytes: Count
    unsent_bytes: Count
    backoff: Count
    retransmitted: Count
    segments: Count
    arrived: Count
    acked_age_s: Age
    heard_age_s: Age
    rtt_s: Age
    sent_bytes: Count
    received_bytes: Count


@dataclass(frozen=True)
class Machine:
    """What holds a host's processors back, over some seconds. None: nobody tells there.

    limited: share of the periods of its control group in which a limit stopped it. stolen: of the
    time in which there was work, that the host of a virtual machine took. clock_hz, most_hz: now
    and at most, of the core for which that is the most. hot: times a second that a core slowed
    itself down. program, program_cores: the busiest beside the run; looked for while it is slow.
    """

    limited: Age | None = None
    stolen: Age = 0.0
    clock_hz: Amount | None = None
    most_hz: Amount | None = None
    hot: Age | None = None
    on_battery: bool | None = None
    swapped_bytes_per_s: Amount | None = None
    program: Text = ""
    program_cores: Age = 0.0


@dataclass(frozen=True)
class Vitals:
    """A host. attempt: which start of the ranks it is about; number: counts up in it. links: of its
    ranks; control: of its host program. machine: None: not looked at yet.
    """

    attempt: Count
    number: Count
    ranks: tuple[RankVitals, ...] = ()
    ended: tuple[Ended, ...] = ()
    links: tuple[LinkVitals, ...] = ()
    control: tuple[LinkVitals, ...] = ()
    machine: Machine | None = None
