"""yoked.toml says what a person meant, or the line in which it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import FleetError
from yoked.fleet.file import (
    find_fleet,
    format_fleet,
    open_fleet,
    read_fleet,
    write_fleet,
)
from yoked.fleet.model import Fleet, Host, Notify
from yoked.fleet.trust import remember

WHOLE = """\
[fleet]
name = "home"
ssh_config = "ssh/config"

[[host]]
name = "i9"
ranks = 2
device = "cpu"
interface = "enp4s0"
address = "192.168.1.36"

[[host]]
name = "me@laptop"
python = "~/venv/bin/python"
nice = 10
console = ["docker", "exec", "-i", "laptop", "sh"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "yoked.toml"


def refusal(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(FleetError) as caught:
        read_fleet(file)
    assert caught.value.fix
    return caught.value.what.replace(str(file), "yoked.toml")


def test_all_keys_are_read_and_a_path_is_relative_to_the_file(file: Path) -> None:
    file.write_text(WHOLE)

    fleet = read_fleet(file)

    assert fleet == Fleet(
        name="home",
        hosts=(
            Host("i9", 2, "cpu", "enp4s0", "192.168.1.36"),
            Host(
                "me@laptop",
                python="~/venv/bin/python",
                nice=10,
                console=("docker", "exec", "-i", "laptop", "sh"),
            ),
        ),
        path=file,
        ssh_config=file.parent / "ssh" / "config",
    )


@pytest.mark.parametrize(
    ("lines", "receiver"),
    [
        ('url = "https://ntfy.sh/topic"', Notify(url="https://ntfy.sh/topic")),
        ('command = ["mail", "-s", "a b", "me"]', Notify(command=("mail", "-s", "a b", "me"))),
    ],
)
def test_who_is_told_is_read_and_written_back(file: Path, lines: str, receiver: Notify) -> None:
    file.write_text(f'[notify]\n{lines}\n[[host]]\nname = "a"\n')

    fleet = read_fleet(file)
    file.write_text(format_fleet(fleet, {}))

    assert (fleet.notify, read_fleet(file)) == (receiver, fleet)
    assert "topic" not in repr(fleet)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", ":1: notify has one of two keys: url or command"),
        ('url = "https://a/b"\ncommand = ["c"]', ":1: notify has one of two keys: url or command"),
        ('url = "file:///secret"', ":2: url of notify: no URL that begins with https:// or http"),
        ('url = "https://a/secret b"', ":2: url of notify: no URL that begins with"),
        ('url = "https://me:secret@a/b"', ":2: url of notify: a user or password in it is not"),
        ('url = "https://[secret/b"', ":2: url of notify: no URL that begins with"),
        ('command = "mail me"', ":2: command of notify must be a list of words"),
        ("command = []", ":2: command of notify must be a list of words"),
        ('command = [""]', ":2: command of notify: must not be empty"),
        ('urll = "https://a/b"', ":2: unknown key 'urll' of notify; did you mean url?"),
    ],
)
def test_what_is_wrong_with_who_is_told_is_said_without_a_secret(
    file: Path, lines: str, said: str
) -> None:
    file.write_text(f'[notify]\n{lines}\n[[host]]\nname = "a"\n')

    with pytest.raises(FleetError) as raised:
        read_fleet(file)

    assert said in raised.value.what
    assert "secret" not in str(raised.value)


def test_what_is_included_is_read_and_written_back(file: Path) -> None:
    file.write_text('[files]\ninclude = ["*.bin", "/data/"]\n[[host]]\nname = "a"\n')

    fleet = read_fleet(file)
    file.write_text(format_fleet(fleet, {}))

    assert (fleet.include, read_fleet(file)) == (("*.bin", "/data/"), fleet)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"*.bin"', ":2: include of files must be a list of at most 100 patterns"),
        ("[7]", ":2: include of files must be a list of at most 100 patterns"),
        ('["a", "../b"]', ":2: include of files: '../b' must name files below the folder"),
    ],
)
def test_what_cannot_be_included_is_told_with_its_line(file: Path, value: str, said: str) -> None:
    text = f'[files]\ninclude = {value}\n[[host]]\nname = "a"\n'

    assert refusal(file, text).startswith(f"yoked.toml{said}")


def test_a_file_that_its_owner_closed_stays_closed(file: Path) -> None:
    file.write_text("")
    file.chmod(0o600)

    write_fleet(file, '[[host]]\nname = "a"\n', force=True)

    assert file.stat().st_mode & 0o777 == 0o600


def test_a_path_is_written_as_it_will_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("home/yoked.toml")
    for written, again in (
        ("ssh/config", "ssh/config"),
        ("/etc/ssh/config", "/etc/ssh/config"),
        ("../config", "../config"),
    ):
        file.parent.mkdir(exist_ok=True)
        file.write_text(WHOLE.replace("ssh/config", written))
        fleet = read_fleet(file)

        assert f'ssh_config = "{again}"\n' in format_fleet(fleet, {})


def test_a_host_and_its_name_are_enough(file: Path) -> None:
    file.write_text('[[host]]\nname = "."\n')

    fleet = read_fleet(file)

    assert fleet.hosts == (Host("."),)
    assert fleet.name == "yoked"


@pytest.mark.parametrize(
    ("written", "meant", "said"),
    [
        (
            'interface = "enp4s0"',
            'interfce = "enp4s0"',
            "yoked.toml:9: unknown key 'interfce' of host i9; did you mean interface?",
        ),
        ("ssh_config =", "ssh_confg =", "yoked.toml:3: unknown key 'ssh_confg'; did you mean"),
        ("[fleet]", "[flete]", "yoked.toml:1: unknown key 'flete'; did you mean fleet?"),
        ("ranks = 2", "ranks = -1", "yoked.toml:7: ranks of host i9 must be 1 to 4,096, not -1"),
        ("ranks = 2", 'ranks = "2"', "yoked.toml:7: ranks of host i9 must be a whole number"),
        ('"cpu"', '"gpu"', "yoked.toml:8: device of host i9 must be 'auto', 'cpu', 'cuda' or"),
        ('"192.168.1.36"', '"i9.local"', "yoked.toml:10: address of host i9: 'i9.local' is no IP"),
        ('"enp4s0"', '"a b"', "yoked.toml:9: interface of host i9: 'a b' is no interface's name"),
        ('"me@laptop"', '"-oProxyCommand=x"', "yoked.toml:13: name of host -oProxyCommand=x"),
        ('"me@laptop"', '"i9"', "yoked.toml:13: there are two hosts i9"),
        ('name = "me@laptop"\n', "", "yoked.toml:12: there is no name of host number 2"),
        ('python = "~/venv/bin/python"', 'python = ""', "yoked.toml:14: python of host me@laptop"),
        ("nice = 10", "nice = -5", "yoked.toml:15: nice of host me@laptop must be 0 to 19, not -5"),
        ("nice = 10", "nice = true", "yoked.toml:15: nice of host me@laptop must be 0 to 19"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    file: Path, written: str, meant: str, said: str
) -> None:
    assert said in refusal(file, WHOLE.replace(written, meant, 1))


def test_all_that_is_wrong_is_told_at_once(file: Path) -> None:
    said = refusal(file, WHOLE.replace("ranks", "rank").replace("python =", "pyton ="))

    assert [line.split(":")[1] for line in said.splitlines()] == ["7", "14"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no host: write [[host]]"),
        ("host = []", "at least one [[host]]"),
        ("host = 3", "host must be written as [[host]]"),
        ("[[host]\n", "is not TOML"),
        ("fleet = 3\n[[host]]\nname = 'a'\n", "fleet must be written as [fleet]"),
    ],
)
def test_a_file_that_is_no_fleet_is_refused(file: Path, text: str, said: str) -> None:
    assert said in refusal(file, text)


def test_bytes_that_are_no_text_are_refused(file: Path, snapshot: SnapshotAssertion) -> None:
    file.write_bytes(b'[[host]]\nname = "\xff"\n')

    with pytest.raises(FleetError) as caught:
        read_fleet(file)
    assert str(caught.value) == snapshot


def test_the_named_file_counts_then_the_one_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(WHOLE)
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "config").touch()

    assert find_fleet(None) is None
    assert find_fleet(Path(".")) is None  # noqa: PTH201 - as it is typed
    assert open_fleet(None).hosts == (Host("."),)
    remember(read_fleet(other))
    assert open_fleet(other).name == "home"
    (tmp_path / "yoked.toml").write_text('[fleet]\nname = "here"\n[[host]]\nname = "a"\n')
    assert open_fleet(None).name == "here"
    with raises_fault("fleet-missing", path="nowhere.toml"):
        find_fleet(Path("nowhere.toml"))


def test_a_dot_is_this_machine_and_not_the_fleet_whose_file_is_here(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert open_fleet(None).flag == ""

    file.write_text(WHOLE)
    here = open_fleet(Path("."))  # noqa: PTH201 - as it is typed

    assert (here.flag, here.path.is_file()) == (" --fleet .", False)


def test_a_file_here_that_leads_nowhere_is_no_wish_for_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_fleet(None) is None

    Path("yoked.toml").symlink_to("shared/home.toml")
    with raises_fault("fleet-missing", path=str(tmp_path / "shared/home.toml")):
        find_fleet(None)

    Path("yoked.toml").unlink()
    Path("yoked.toml").mkdir()
    with raises_fault("fleet-missing", path="yoked.toml/yoked.toml"):
        find_fleet(None)
    assert find_fleet(Path()) is None


def test_of_a_folder_the_file_in_it_is_named_and_where_there_is_none_how_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()

    with raises_fault("fleet-missing", path="home/yoked.toml"):
        find_fleet(Path("home"))
    (tmp_path / "home" / "yoked.toml").write_text(WHOLE)
    with pytest.raises(FleetError) as caught:
        find_fleet(Path("home"))
    assert caught.value.fix == ("name the file in it: home/yoked.toml",)

    with pytest.raises(FleetError) as caught:
        write_fleet(Path("home"), WHOLE, force=True)
    assert caught.value.fix == ("--fleet home/yoked.toml",)


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1)
SSH_NAMES = st.from_regex(r"[\w.@:%/+=,][\w.@:%/+=,-]*", fullmatch=True)


@given(
    hosts=st.lists(
        st.builds(
            Host,
            SSH_NAMES,
            st.none() | st.integers(1, 64),
            st.sampled_from(["auto", "cpu", "cuda", "mps"]),
            st.none() | st.sampled_from(["eth0", "wg0", "eth0:1"]),
            st.none() | st.ip_addresses().map(str),
            st.none() | NAMES,
            st.integers(0, 19),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda host: host.name,
    ),
    name=NAMES,
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, hosts: list[Host], name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.toml"
    fleet = Fleet(name, tuple(hosts), path, Path("/etc/ssh/config"))

    path.write_text(format_fleet(fleet, {hosts[0].name: "8 cores"}), encoding="utf-8")

    assert read_fleet(path) == fleet


def test_a_file_that_is_there_is_left_alone(file: Path) -> None:
    file.write_text("by hand")

    with raises_fault("fleet-exists"):
        write_fleet(file, WHOLE)

    assert file.read_text() == "by hand"


def test_a_file_that_is_replaced_is_kept_beside_the_new_one(file: Path) -> None:
    file.write_text("by hand")

    kept = write_fleet(file, WHOLE, force=True)

    assert file.read_text() == WHOLE
    assert kept is not None
    assert kept.read_text() == "by hand"
    assert sorted(each.name for each in file.parent.iterdir()) == ["yoked.toml", "yoked.toml.old"]


def test_a_file_that_was_kept_before_is_not_lost(file: Path) -> None:
    for text in ("by hand", "second", "third"):
        file.write_text(text)
        write_fleet(file, WHOLE, force=True)

    old = [file.with_name(f"yoked.toml.old{number}") for number in ("", "2", "3")]
    assert [each.read_text() for each in old] == ["by hand", "second", "third"]


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with raises_fault("fleet-unwritable"):
        write_fleet(tmp_path / "file" / "yoked.toml", WHOLE)


def test_what_a_host_says_of_itself_stays_a_comment(file: Path) -> None:
    fleet = Fleet("home", (Host("attic"),), file)
    cpu = 'i9\n[[host]]\nname = "evil"\rname = "x"\x85\u2028# more'

    file.write_text(format_fleet(fleet, {"attic": cpu}))

    assert [host.name for host in read_fleet(file).hosts] == ["attic"]


@pytest.mark.parametrize(
    "name", ["a;touch x", "$(x)", "a`x`", "a|b", "a&b", "it's", 'a"b', "~x", "*"]
)
def test_a_name_that_means_something_to_a_shell_is_none(
    file: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    said = refusal(file, f"[[host]]\nname = {json.dumps(name)}\n")

    assert said == snapshot


@pytest.mark.parametrize("name", ["eth0;x", "-f", "a b", "e'", "eth0\u00e9", "x" * 16])
def test_an_interface_is_named_as_the_kernel_names_them(
    file: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    said = refusal(file, f'[[host]]\nname = "a"\ninterface = {json.dumps(name)}\n')

    assert said == snapshot
