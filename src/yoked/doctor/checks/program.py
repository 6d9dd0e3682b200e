"""Whether hosts have all that the program here needs: its own files, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks import asked, beside, made_of, wanted, wanted_files
from yoked.doctor.checks.asked import in_other_order, in_other_zones
from yoked.doctor.checks.beside import taken_for_another
from yoked.doctor.checks.made_of import in_the_folder
from yoked.doctor.checks.wanted import caches, in_any_place, ports, programs, variables
from yoked.doctor.checks.wanted_files import above, files, resumed, written
from yoked.records.examination import Examination

_PARTS = (made_of, beside, asked, wanted, wanted_files)


@check(
    "program-needs",
    question="Does each host have all that the program here needs?",
    reads=("controller", "torch", "facts", "health.asked", "need.data", "health.data",
           "health.clock", "health.environment"),
    severity="error",
    saw={how: words for each in _PARTS for how, words in each.SAW.items()},
    why={how: words for each in _PARTS for how, words in each.WHY.items()},
    symptom="`KeyError`, `FileNotFoundError`, `PermissionError`, `FileExistsError` or "
    "`ImportError` on one host and not on the others; ranks that train on different things, or of "
    "some rows twice, or write to folders of different names. A change of a source that has no "
    "effect. On all hosts `ModuleNotFoundError` of what lies beside the program, "
    "`UnicodeEncodeError: surrogates not allowed`, `could not convert string to float: 'version "
    "https://git-lfs...`.",
    cause="**Asked for by name**: a file, a cache or a variable that was set up by hand on some "
    "hosts; what an earlier run or another user left there, in /tmp or /dev/shm; a program that "
    "is not installed. Asked for is what stands in the sources here, in the folder where this was "
    "typed, and is used: a variable with a default, and what the program makes itself, is not "
    "missed. Of small packages that it imports, settings in the home folder and variables count, "
    "which hosts have otherwise than each other.\n\n"
    "**Answered otherwise**: os.listdir and glob have names as the file system keeps them; files "
    "that were copied without their times (scp without -p) have the times of the copies; a host "
    "has another time zone (/etc/localtime, or TZ). Orders count where --data names the "
    "folder.\n\n"
    "**Left behind or broken**: a line of .gitignore or .git/info/exclude, in the program's folder "
    "or in one above it, leaves a module out; a file that was not saved whole, or has the marks of "
    "a merge in it; a clone that was made without git-lfs; a core dump, data or an environment in "
    "the folder, which is then larger than what a launch sends. These are warnings: files that the "
    "program only names, pointers that it does not name, a pipe or a socket of some tool, names "
    "out of an archive of another system, a link to a disk that is gone or to what git's rules "
    "leave here, a log that is being written.\n\n"
    "**Taken for another**: a module that was once compiled (Cython, mypyc, setup.py build_ext "
    "--inplace) and lies beside its source; a package and a module of one name; bytecode without "
    "its source. Python takes a package before a compiled module, that before a source, and this "
    "before bytecode; and of compiled modules only those for its own version and machine. What is "
    "imported from another file than the source is a warning: what was built on purpose is "
    "younger.\n\n"
    "**Goes well on one machine alone**: a line that sets MASTER_ADDR or RANK to a value of its "
    "own, as in tutorials; names that are dealt out by LOCAL_RANK; a file that rank 0 writes and "
    "all read; a checkpoint from which ranks go on where their host has it; breakpoint() or "
    "input(). These are warnings.",
    fix="By hand; takes TZ out of the start file that sets it.",
)  # fmt: skip
def program_needs(seen: Examination) -> Iterator[Match]:
    yield from in_the_folder(seen)
    yield from taken_for_another(seen)
    yield from in_other_order(seen)
    yield from in_other_zones(seen)
    yield from variables(seen)
    yield from files(seen)
    yield from resumed(seen)
    yield from above(seen)
    yield from written(seen)
    yield from programs(seen)
    yield from ports(seen)
    yield from caches(seen)
    yield from in_any_place(seen)


CHECKS = (program_needs,)
