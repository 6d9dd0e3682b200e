"""Foreign text does nothing to a terminal but what it may."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.text import Followed, one_line, plain, telling

CONTROL = "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
# What a terminal may get of followed output.
HARMLESS = re.compile(rf"(?:(?!{CONTROL}).|[\n\t\r]|\x1b\[[0-9;:]*m|\x1b\[[0-2]?K)*", re.DOTALL)

ATTACKS = {
    "title": ("\x1b]0;root@attic\x07", ""),
    "title, ended by ST": ("\x1b]2;root@attic\x1b\\", ""),
    "title of C1": ("\x9d0;root@attic\x9c", ""),
    "clipboard": ("\x1b]52;c;cm0gLXJmIH4=\x07", ""),
    "link": ("\x1b]8;;http://evil\x1b\\yoked\x1b]8;;\x1b\\", "yoked"),
    "screen cleared": ("\x1b[2J\x1b[H", ""),
    "cursor up": ("\x1b[1A\x1b[5;1H", ""),
    "cursor hidden": ("\x1b[?25l", ""),
    "other screen": ("\x1b[?1049h", ""),
    "device asked": ("\x1b[c\x1b[6n\x1b[>q", ""),
    "CSI of C1": ("\x9b2J", ""),
    "keys changed": ("\x1b[>4;2m", ""),
    "status string": ('\x1bP$q"p\x1b\\', ""),
    "sixel": ("\x1bPq#0;2;0;0;0\x1b\\", ""),
    "APC": ("\x1b_Ga=T;AAAA\x1b\\", ""),
    "PM": ("\x1b^words\x1b\\", ""),
    "SOS": ("\x1bXwords\x1b\\", ""),
    "reset": ("\x1bc", ""),
    "character set": ("\x1b(0\x0e\x0f", ""),
    "bell and backspace": ("\x07\x08\x08", ""),
    "override": ("\u202egpj.exe\u2066", "gpj.exe"),
    "escape alone": ("\x1b\x1b\x1b\n", "\n"),
    "string that nobody ends": ("\x1b]0;words\nnext line", "\nnext line"),
    "string that is cancelled": ("\x1b]0;words\x18after", "after"),
}


@pytest.mark.parametrize(("attack", "shown"), ATTACKS.values(), ids=ATTACKS.keys())
def test_followed_output_loses_what_acts_on_a_terminal(attack: str, shown: str) -> None:
    assert Followed().feed(f"before {attack}| after") == f"before {shown}| after"


@pytest.mark.parametrize(("attack", "shown"), ATTACKS.values(), ids=ATTACKS.keys())
def test_so_it_does_when_it_comes_byte_by_byte(attack: str, shown: str) -> None:
    followed = Followed()

    seen = "".join(followed.feed(one) for one in f"before {attack}| after")

    assert seen == f"before {shown}| after"


@pytest.mark.parametrize(("attack", "shown"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_message_shows_it_as_escapes(attack: str, shown: str) -> None:
    del shown

    assert re.search(CONTROL, plain(attack).replace("\n", "")) is None
    assert re.search(CONTROL, one_line(attack)) is None


def test_followed_output_keeps_colours_progress_bars_and_erased_lines() -> None:
    bar = "\x1b[1;38;5;208mstep\x1b[0m\t1\r 50%\x1b[K\r100%\x1b[2K\n"
    output = f"{bar}\x1b[38:2::1:2:3mred\x1b[m é 語\n"

    assert Followed().feed(output) == output


def test_a_colour_that_was_left_on_is_ended_once() -> None:
    followed = Followed()
    followed.feed("\x1b[31mred")

    assert (followed.close(), followed.close()) == ("\x1b[0m", "")


def test_a_colour_that_was_ended_needs_no_end() -> None:
    followed = Followed()
    followed.feed("\x1b[31mred\x1b[0m")

    assert followed.close() == ""


def test_what_a_string_holds_back_is_bounded() -> None:
    followed = Followed()

    shown = "".join(followed.feed("x" * 1000) for _ in range(100) if followed.feed("\x1b]0;") == "")
    kept = followed._begun

    assert len(kept) < 5000
    assert HARMLESS.fullmatch(shown)


@given(st.lists(st.text(st.sampled_from("\x1b[]P\\;?0m1KJ\x07\x9b\x9c\x9d\x18\r\nab \u202e"))))
def test_however_it_is_cut_only_the_harmless_is_left(pieces: list[str]) -> None:
    followed = Followed()

    seen = "".join(followed.feed(piece) for piece in pieces)

    assert HARMLESS.fullmatch(seen)
    assert seen == "".join(map(Followed().feed, "".join(pieces)))


@given(st.text())
def test_any_message_is_shown_without_controls(text: str) -> None:
    shown = plain(text)

    assert re.search(CONTROL, re.sub("[\n\t]", "", shown)) is None
    assert plain(shown) == shown
    assert one_line(text).isprintable() or re.search(CONTROL, one_line(text)) is None


# As Python 3.11 says it.
SEED = """\
Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be "random" or an integer
Python runtime state: preinitialized

Current thread 0x00007f50 (most recent call first):
  <no Python frame>
"""
LIBRARY = """\
Could not find platform independent libraries <prefix>
Python path configuration:
  PYTHONHOME = (not set)
Fatal Python error: init_fs_encoding: failed to get the Python codec
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007f50 (most recent call first):
  <no Python frame>
"""
EXITS = """\
Fatal Python error: init_import_site: Failed to import the site module
Python runtime state: initialized
Traceback (most recent call last):
  File "<frozen site>", line 636, in <module>
  File "<string>", line 1, in <module>
SystemExit: debugger: no IDE
"""
RAISES = """\
Error processing line 1 of /v/site-packages/zz.pth:

  Traceback (most recent call last):
    File "<frozen site>", line 195, in addpackage
  ModuleNotFoundError: No module named 'licence'

Remainder of file ignored
"""
EMPTY = """\
Traceback (most recent call last):
  File "/v/torch/_logging.py", line 9, in f
ValueError:{}
Invalid log settings: inductr, must be a list
""".format(" ")
CHAIN = """\
Traceback (most recent call last):
  File "a.py", line 1
ImportError: a.so: cannot open

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1
ImportError: read this page
"""
LOADER = "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (SEED, [SEED.splitlines()[0]]),
        (LIBRARY, [LIBRARY.splitlines()[3], "ModuleNotFoundError: No module named 'encodings'"]),
        (EXITS, [EXITS.splitlines()[0], "SystemExit: debugger: no IDE"]),
        (RAISES, [RAISES.splitlines()[0][:-1], "ModuleNotFoundError: No module named 'licence'"]),
        (EMPTY, ["ValueError: Invalid log settings: inductr, must be a list"]),
        (CHAIN, ["ImportError: a.so: cannot open", "ImportError: read this page"]),
        (LOADER, [LOADER.strip()]),
        ("one\ntwo\n\n", ["two"]),
        ("\n", []),
    ],
)
def test_of_what_a_program_said_as_it_ended_the_telling_lines_stay(
    said: str, told: list[str]
) -> None:
    assert telling(said) == "; ".join(told)
