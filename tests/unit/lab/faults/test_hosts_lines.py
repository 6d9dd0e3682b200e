"""Lines of /etc/hosts, taken out and put back."""

from __future__ import annotations

from yoked.lab.faults.names import names_in, with_line_first, without_name

FILE = [
    "127.0.0.1 localhost",
    "::1 localhost ip6-localhost",
    "192.168.77.1 alpha",
    "192.168.77.2 beta beta.home # not alpha",
]


def test_a_name_goes_and_the_other_names_of_its_line_stay() -> None:
    assert without_name(FILE, "beta")[-1] == "192.168.77.2\tbeta.home"


def test_a_line_whose_only_name_goes_is_gone() -> None:
    assert without_name(FILE, "alpha") == [FILE[0], FILE[1], FILE[3]]


def test_a_comment_is_no_name() -> None:
    assert names_in(FILE).count("alpha") == 1


def test_a_new_line_comes_before_all_but_localhost() -> None:
    assert with_line_first(FILE, "127.0.1.1\talpha")[1] == "127.0.1.1\talpha"
    assert with_line_first(["192.168.77.1 alpha"], "new")[0] == "new"
