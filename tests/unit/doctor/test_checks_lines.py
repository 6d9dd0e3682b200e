"""The lines that fixes are made of do what they say, and can be taken back."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.builders import ADDRESS, PYTHON, change, home, told, unreached
from tests.unit.doctor.troubles import said

from yoked.core.proc import ProcessId
from yoked.doctor.causes import findings_of
from yoked.doctor.fixing import FixJournal, FixPlan, ShellResult, apply_fixes, undo_fix
from yoked.doctor.repairs.files import (
    close_key,
    close_ssh_folder,
    drop_dead_links,
    make_executable,
    pass_over_block,
    renew_pub,
    rewrite_file,
)
from yoked.doctor.repairs.fleet import choose_again, edit_entry
from yoked.doctor.repairs.network import narrow_route, write_name
from yoked.doctor.repairs.packages import get_package, get_torch, mend_environment
from yoked.doctor.repairs.startfiles import (
    leave_out_line,
    quiet,
    take_out_limit,
    take_out_variable,
    unset_variable,
)
from yoked.doctor.repairs.system import kill_line
from yoked.records.examination import Examination, Finding, Fix, SshFailure
from yoked.records.shell import quoted, shell_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the lines are for Linux")

BASHRC = """\
# what I need
export PATH=$HOME/bin:$PATH
\texport  RANK=5
RANK_OF_MINE=1
ulimit -S -n 24
ulimit -c 0
"""
TOML = """\
[[host]]
name = "attic"
ranks = 2
python = "/opt/attic/bin/python"

[[host]]
name = "gar.age"
ranks = 8
python = "/opt/gone/bin/python"

[[host]]
name = "gar-age"
ranks = 3
"""


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder)}
    return subprocess.run(
        ["sh", "-c", line], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def undo(fix: Fix) -> str:
    assert fix.undo is not None
    return fix.undo


def test_a_variable_is_taken_out_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(BASHRC)
    fix = take_out_variable("garage", "RANK")

    assert run(fix.command, tmp_path).returncode == 0

    assert file.read_text() == BASHRC.replace("\texport  RANK=5", "# \texport  RANK=5")
    assert run(undo(fix), tmp_path).returncode == 0
    assert file.read_text() == BASHRC
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("export RANK=5 OTHER=1\n", "export OTHER=1\n"),
        ("export OTHER=1 RANK=5\n", "export OTHER=1 \n"),
        ('A="x y" RANK=5 B=2\n', 'A="x y" B=2\n'),
        ('export RANK="5 or 6"   # of old\n', '# export RANK="5 or 6"   # of old\n'),
        ("export RANK='5 or 6'\n", "# export RANK='5 or 6'\n"),
        ("export RANK_A=1 RANKS=2\nRANK=5\n", "export RANK_A=1 RANKS=2\n# RANK=5\n"),
    ],
)
def test_of_several_variables_on_a_line_the_others_stay(
    before: str, after: str, tmp_path: Path
) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(before)
    fix = take_out_variable("garage", "RANK")

    assert run(fix.command, tmp_path).returncode == 0

    assert file.read_text() == after
    run(undo(fix), tmp_path)
    assert file.read_text() == before


def test_a_variable_is_taken_out_of_the_files_that_set_it(tmp_path: Path) -> None:
    mine, other = tmp_path / ".profile", tmp_path / ".bashrc"
    for file in (mine, other):
        file.write_text("export RANK=5\n")
    places = [
        {"file": str(mine), "line": 1},
        {"file": "/etc/profile.d/mpi.sh", "line": 3},
        {"file": "/etc/ssh/sshd_config", "line": 9},
    ]

    own, system, server = unset_variable("garage", tmp_path, "RANK", places)

    assert run(own.command, tmp_path).returncode == 0
    assert (mine.read_text(), other.read_text()) == ("# export RANK=5\n", "export RANK=5\n")
    assert run(undo(own), tmp_path).returncode == 0
    assert mine.read_text() == "export RANK=5\n"
    assert (system.root, system.by_hand, "/etc/profile.d/mpi.sh" in system.command) == (
        True, False, True,
    )  # fmt: skip
    assert (server.by_hand, "reload ssh" in server.command) == (True, True)


def test_a_line_that_was_traced_to_a_variable_goes_whole(tmp_path: Path) -> None:
    mine = tmp_path / ".bashrc"
    mine.write_text("A=RANK\nprintf -v $A 5\n")
    places = [{"file": str(mine), "line": 2, "traced": True}]

    (fix,) = unset_variable("garage", tmp_path, "RANK", places)

    assert run(fix.command, tmp_path).returncode == 0
    assert mine.read_text() == "A=RANK\n# printf -v $A 5\n"


def test_a_variable_that_fish_keeps_is_taken_out_by_fish() -> None:
    places = [{"file": "/home/ada/.config/fish/fish_variables", "line": 9}]

    (fix,) = unset_variable("garage", "/home/ada", "RANK", places)

    assert (fix.by_hand, fix.command) == (True, "fish -c 'set -e -U RANK'")


def test_a_block_of_sshs_settings_becomes_a_comment_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "config"
    before = 'Host a\n  User x\nMatch exec "sleep 9"\n  Port 1\nmatch all\n  Port 2\n'
    file.write_text(before)
    fix = pass_over_block(str(file), 3, root=False)

    assert run(fix.command, tmp_path).returncode == 0

    assert file.read_text() == before.replace("Match", "# Match").replace("  Port 1", "#   Port 1")
    assert run(undo(fix), tmp_path).returncode == 0
    assert file.read_text() == before


def test_a_pub_becomes_that_of_its_key(tmp_path: Path) -> None:
    key = tmp_path / "my id"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    public = tmp_path / "my id.pub"
    own = public.read_text().split()[:2]
    public.write_text("ssh-ed25519 AAAA old\n")
    fix = renew_pub(str(key))

    assert run(fix.command, tmp_path).returncode == 0

    assert public.read_text().split()[:2] == own
    run(undo(fix), tmp_path)
    assert public.read_text() == "ssh-ed25519 AAAA old\n"


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (2, "A=1\n# echo hello\nif true; then\n  B=2\nfi\n"),
        # Without it the rest would be no program.
        (3, "case $- in *i*) ;; *) return ;; esac\nA=1\necho hello\nif true; then\n  B=2\nfi\n"),
    ],
)
def test_a_line_of_a_start_file_becomes_a_comment(line: int, after: str, tmp_path: Path) -> None:
    file = tmp_path / "my rc"
    before = "A=1\necho hello\nif true; then\n  B=2\nfi\n"
    file.write_text(before)
    fix = leave_out_line("garage", str(file), line)

    assert run(fix.command, tmp_path).returncode == 0

    assert file.read_text() == after
    assert run(undo(fix), tmp_path).returncode == 0
    assert file.read_text() == before


def test_a_line_of_a_system_is_for_root() -> None:
    own, system = (leave_out_line("garage", f, 1) for f in ("~/.bashrc", "/etc/bash.bashrc"))
    pam = leave_out_line("garage", "/etc/security/limits.conf", 4)

    assert (own.root, system.root, pam.root) == (False, True, True)
    # It is no program of a shell.
    assert "esac" not in pam.command


def test_a_variable_that_no_file_sets_is_left_to_a_person() -> None:
    (fix,) = unset_variable("garage", "/home/ada", "RANK", [])

    assert fix.by_hand


def test_links_to_what_is_gone_go_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "my packages"
    folder.mkdir()
    (folder / "kept.py").write_text("")
    (folder / "link.py").symlink_to("kept.py")
    (folder / "dead.py").symlink_to("/gone/cache/dead.py")

    assert run(drop_dead_links("garage", str(folder)).command, tmp_path).returncode == 0

    assert sorted(each.name for each in folder.iterdir()) == ["kept.py", "link.py"]


def test_an_environment_gets_its_settings_back(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "mine.py").write_text("")
    (folder / "pyvenv.cfg").unlink()
    fix = mend_environment("garage", str(folder / "bin" / "python"))

    assert run(fix.command, tmp_path).returncode == 0

    line = f"{shlex.quote(str(folder / 'bin' / 'python'))} -c 'import mine'"
    assert run(line, tmp_path).returncode == 0
    assert run(undo(fix), tmp_path).returncode == 0
    assert run(line, tmp_path).returncode != 0


def test_a_limit_is_taken_out_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(BASHRC)

    assert run(take_out_limit("garage", "n").command, tmp_path).returncode == 0

    assert file.read_text() == BASHRC.replace("ulimit -S -n 24", "# ulimit -S -n 24")


def test_a_line_that_finds_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("echo hello\n")

    assert run(take_out_variable("garage", "RANK").command, tmp_path).returncode != 0


def test_two_lines_on_one_file_are_taken_back_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(BASHRC)
    fixes = [take_out_variable("garage", "RANK"), take_out_limit("garage", "n")]

    for fix in fixes:
        run(fix.command, tmp_path)
    for fix in reversed(fixes):
        run(undo(fix), tmp_path)

    assert file.read_text() == BASHRC


def test_a_start_file_is_made_silent_where_nobody_sits(tmp_path: Path) -> None:
    file = tmp_path / ".bashrc"
    file.write_text("echo welcome\nexit 1\n")
    fix = quiet("garage")

    assert run(fix.command, tmp_path).returncode == 0

    said = subprocess.run(
        ["bash", "-c", f". {shlex.quote(str(file))}; echo on"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "on\n"
    run(undo(fix), tmp_path)
    assert file.read_text() == "echo welcome\nexit 1\n"


@pytest.mark.parametrize(
    "content",
    [
        BASHRC,
        "case $- in *i*) ;; *) return ;; esac\necho welcome\nexit 1\n",
        '[ -z "$PS1" ] && return\necho welcome\n',
        "echo careful >&2\n",
    ],
    ids=["plain", "as Debian has it", "as others have it", "to stderr"],
)
def test_a_start_file_that_is_innocent_stays_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(content)

    done = run(quiet("garage").command, tmp_path)

    assert done.returncode != 0
    assert "ForceCommand" in done.stderr
    assert file.read_text() == content
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "content", ["exit 0\n", "echo hi\n", "exec true\n", "sleep 60\n"],
    ids=["exits", "prints", "becomes another", "waits"],
)  # fmt: skip
def test_a_start_file_that_is_in_the_way_is_known_by_trying_it(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / ".bashrc"
    file.write_text(content)
    # What is in the way is known as well by less patience.
    line = quiet("garage").command.replace("timeout 9", "timeout 1")

    assert run(line, tmp_path).returncode == 0

    assert file.read_text().startswith("case $- in")
    assert file.read_text().endswith(content)


def test_only_files_of_ssh_that_others_may_write_are_changed(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir(mode=0o700)
    keys.write_text("ssh-ed25519 AAAA\n")
    other = tmp_path / "shared"
    for path, mode in ((tmp_path, 0o755), (keys, 0o666)):
        path.chmod(mode)
    other.write_text("")
    other.chmod(0o666)
    fix = close_ssh_folder("garage")

    first, again = run(fix.command, tmp_path), run(fix.command, tmp_path)

    assert (first.returncode, first.stdout) == (0, f"{keys}\n")
    assert (again.returncode, again.stdout) == (0, "")
    assert keys.stat().st_mode & 0o777 == 0o644
    assert other.stat().st_mode & 0o777 == 0o666


def test_a_key_is_closed_and_a_program_is_made_one(tmp_path: Path) -> None:
    key, program, other = (tmp_path / name for name in ("my key", "python", "other"))
    key.write_text("")
    key.chmod(0o644)
    program.write_text("#!/bin/sh\n")
    other.write_text("#!/no/such/interpreter\n")

    assert run(close_key(str(key)).command, tmp_path).returncode == 0
    assert run(make_executable("garage", str(program)).command, tmp_path).returncode == 0
    assert run(make_executable("garage", str(other)).command, tmp_path).returncode != 0

    assert key.stat().st_mode & 0o777 == 0o600
    assert os.access(program, os.X_OK)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("127.0.0.1 localhost\n127.0.1.1\tgarage\n", "127.0.0.1 localhost\n"),
        ("127.0.1.1 garage.home garage\n", "127.0.1.1 garage.home\n"),
        ("127.0.1.1 garage garage2 # garage\n", "127.0.1.1 garage2 #\n"),
        ("# garage is here\n10.0.0.1 attic-garage\n", "# is here\n10.0.0.1 attic-garage\n"),
    ],
)
def test_a_name_gets_one_address_in_the_hosts_file(before: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(before)
    fix = write_name("garage", "garage", ADDRESS["garage"])

    def here(line: str) -> str:
        return line.replace("/etc/hosts", str(file))

    assert run(here(fix.command), tmp_path).returncode == 0

    assert file.read_text() == f"{ADDRESS['garage']} garage\n{after}"
    assert run(here(undo(fix)), tmp_path).returncode == 0
    assert file.read_text() == before


@pytest.mark.parametrize("pip", ["true", "false"])
def test_a_package_is_installed_into_an_environment_without_pip_too(
    pip: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n[ "$3" != --version ] || {pip}\n')
    python.chmod(0o755)
    host = home().host("garage")
    named = replace(host, wanted={**host.wanted, "python": str(python)})

    (fix,) = get_package(home(), named, "numpy")
    assert run(fix.command, tmp_path).returncode == 0

    assert calls.read_text().splitlines() == snapshot


def test_on_this_machine_the_python_that_runs_is_installed_into() -> None:
    here = replace(home().host("garage"), name=".")
    seen = replace(home(), hosts=(here,))

    (fix,) = get_torch(seen, here, "2.13.0+cpu", "--anew")

    assert fix.host == "."
    assert fix.command.endswith(f"{PYTHON} -m pip install --force-reinstall torch==2.13.0")


def test_an_entry_of_the_fleet_file_is_changed_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "yoked.toml"
    file.write_text(TOML)
    seen = Examination((), controller={"fleet": str(file)})

    fix = edit_entry(seen, "gar.age", "s/^ranks *=.*/ranks = 4/")
    assert run(fix.command, tmp_path).returncode == 0
    assert file.read_text() == TOML.replace("ranks = 8", "ranks = 4")
    assert run(undo(fix), tmp_path).returncode == 0

    removal = edit_entry(seen, "gar.age", "/^python *=/d")
    assert run(removal.command, tmp_path).returncode == 0
    assert file.read_text() == TOML.replace('python = "/opt/gone/bin/python"\n', "")


def test_an_unknown_name_gets_its_address_in_front_of_all_others(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  HostName elsewhere\n")
    seen = home(("attic",))
    lost = unreached("garage", "unresolved", "Could not resolve hostname")
    seen = Examination((*seen.hosts, lost), controller={"ssh_config": str(config)})
    (found,) = findings_of(seen)

    assert run(found.fix[0].command, tmp_path).returncode == 0

    asked = subprocess.run(
        ["ssh", "-F", str(config), "-G", "garage"], capture_output=True, text=True, check=True
    )
    assert f"hostname {ADDRESS['garage']}\n" in asked.stdout
    run(undo(found.fix[0]), tmp_path)
    assert config.read_text() == "Host *\n  HostName elsewhere\n"


HOSTS = "127.0.0.1 localhost\n127.0.1.1 garage\n127.0.0.1 attic\n"
# It greets, so that there is something to silence.
FILES = {"hosts": HOSTS, ".bashrc": f"{BASHRC}echo welcome\n", "yoked.toml": TOML}


def write_files(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).write_text(content)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def in_folder(fix: Fix, folder: Path) -> Fix:
    """The same, of the folder's hosts file."""
    file = f"{folder}/hosts"
    line, back = (each.replace("/etc/hosts", file) for each in (fix.command, undo(fix)))
    return replace(fix, command=line, undo=back)


def every_fix(folder: Path) -> list[Fix]:
    """Some change one file several times, and one is there twice."""
    seen = Examination((), controller={"fleet": str(folder / "yoked.toml")})
    fixes = [
        write_name("garage", "garage", ADDRESS["garage"]),
        write_name("garage", "attic", ADDRESS["attic"]),
        write_name("garage", "garage", ADDRESS["study"]),
        edit_entry(seen, "gar.age", "s/^ranks *=.*/ranks = 4/"),
        edit_entry(seen, "gar.age", "/^python *=/d"),
        take_out_variable("garage", "RANK"),
        quiet("garage"),
        edit_entry(seen, "gar.age", "s/^ranks *=.*/ranks = 4/"),
    ]
    return [in_folder(fix, folder) for fix in fixes]


def plan(*fixes: Fix) -> FixPlan:
    return FixPlan(Finding("any", "error", ("garage",), "", "", fixes))


def in_shell(folder: Path) -> Callable[..., ShellResult]:
    def shell(host: str, line: str, *, root: bool) -> ShellResult:
        done = run(line, folder)
        return ShellResult(done.returncode == 0, done.stderr)

    return shell


def test_fixes_that_change_a_file_twice_give_the_very_first_one_back(tmp_path: Path) -> None:
    folder, fleet = tmp_path / "host", tmp_path / "yoked.toml"
    book = FixJournal(tmp_path / "fixes.jsonl")
    folder.mkdir()
    write_files(folder)
    shell = in_shell(folder)

    assert apply_fixes(plan(*every_fix(folder)), shell, book, fleet).problem == ""
    changed = files(folder)
    problems = [undo_fix(done, shell, book) for done in book.standing(fleet)]

    assert all(changed[name] != content for name, content in FILES.items())
    assert problems == [""] * 8
    assert files(folder) == FILES


def test_the_undo_of_a_line_that_never_ran_changes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path)
    seen = Examination((), controller={"fleet": str(tmp_path / "yoked.toml")})

    for fix in (*every_fix(tmp_path), choose_again(seen)):
        assert run(undo(fix), tmp_path).returncode == 0, fix

    assert files(tmp_path) == FILES


def test_a_line_that_is_typed_twice_does_not_write_over_what_it_kept(tmp_path: Path) -> None:
    write_files(tmp_path)
    for fix in every_fix(tmp_path)[:1] + every_fix(tmp_path)[3:7]:
        assert run(fix.command, tmp_path).returncode == 0
        before = files(tmp_path)

        again = run(fix.command, tmp_path)

        assert again.returncode != 0, fix
        assert files(tmp_path) == before
        run(undo(fix), tmp_path)


def test_a_line_that_fails_half_way_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    folder, book = tmp_path / "host", FixJournal(tmp_path / "fixes.jsonl")
    folder.mkdir()
    (folder / "yoked.toml").write_text(TOML)
    file = quoted(folder / "yoked.toml")
    fix = rewrite_file("", file, "chosen", shell_line(": > {file} && false", file=file))

    carried = apply_fixes(plan(fix), in_shell(folder), book, tmp_path / "yoked.toml")

    assert carried.problem
    assert files(folder) == {"yoked.toml": TOML}
    assert book.standing(tmp_path / "yoked.toml") == []


def test_a_process_is_ended_only_if_it_began_when_it_did(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as meant, subprocess.Popen(["sleep", "60"]) as other:
        known = ProcessId.of(meant.pid)
        gone = {"pid": 2**22 - 1, "start_ticks": 5}
        later = {"pid": other.pid, "start_ticks": known.start_ticks - 100}

        done = run(kill_line([gone, known.to_json(), later]), tmp_path)

        assert (done.returncode, done.stderr) == (0, "")
        assert meant.wait(10) == -9
        assert other.poll() is None
        other.kill()


def test_a_process_that_is_of_another_launch_by_now_is_left_alone(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(["sleep", "60"], env={**os.environ, "YOKED_LAUNCH_ID": launch})
        for launch in ("a1b2", "c3d4")
    ]
    over, trains = processes
    try:
        told_of = [{**ProcessId.of(each.pid).to_json(), "launch": "a1b2"} for each in processes]

        done = run(kill_line(told_of), tmp_path)

        assert (done.returncode, done.stderr) == (0, "")
        assert over.wait(10) == -9
        assert trains.poll() is None
    finally:
        for each in processes:
            each.kill()
            each.wait()


def test_a_shell_is_given_to_one_user_and_only_where_his_lets_nobody_in(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "getent": 'grep "^$2:" passwd',
        "usermod": 'echo "$@" >> changed',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "passwd").write_text(
        "ada:x:1:1::/home/ada:/usr/sbin/nologin\nbackup:x:2:2::/b:/usr/sbin/nologin\n"
        "eve:x:3:3::/home/eve:/bin/zsh\n"
    )

    for user in ("ada", "eve"):
        failure = SshFailure("shell", "not available", user=user, cause="nologin")
        host = replace(unreached("garage", "shell", ""), failure=failure)
        (found,) = findings_of(replace(home(("attic",)), hosts=(host,)))
        (fix,) = found.fix
        assert run(f"PATH={programs}:$PATH; {fix.command}", tmp_path).returncode == 0

    assert (tmp_path / "changed").read_text() == snapshot


NETWORK = """
ip link set lo up && ip link add near type veth peer name far && ip link set near up &&
ip link set far up && ip address add 10.0.0.1/24 dev near &&
ip address add fd00::1/64 dev near nodad && ip route add default via 10.0.0.254 &&
ip -6 route add default via fd00::fe && ip route add 10.9.0.3 via 10.0.0.253 metric 7 &&
ip -6 route add fd11::3 via fd00::fd metric 70 || exit 77
"""


@pytest.mark.parametrize(
    ("address", "way"),
    [
        ("10.0.0.2", "dev near"),
        ("10.9.0.2", "via 10.0.0.254 dev near"),
        ("10.9.0.3", "via 10.0.0.253 dev near"),
        ("fd00::2", "dev near"),
        ("fd11::2", "via fd00::fe dev near"),
        ("fd11::3", "via fd00::fd dev near"),
    ],
)
def test_smaller_packets_go_the_way_that_they_went_and_back(
    address: str, way: str, tmp_path: Path
) -> None:
    fix = narrow_route("garage", address)
    ip = "ip -6" if ":" in address else "ip"
    do, back = (each.replace("/run", str(tmp_path)) for each in (fix.command, undo(fix)))
    # The kernel adds routes of link-local addresses when a link comes up, which may be in between.
    show, used = f"{ip} route show | grep -v ^fe80", f"{ip} route get {address}"
    parts = ["true", f"m=1400; {do}", f"m=1400; {do}", back, back]
    script = NETWORK + "\n".join(
        f"{part} || echo failed; {show}; echo =; {used}; echo ==" for part in parts
    )

    done = run(f"exec unshare -rn sh -c {shlex.quote(script)}", tmp_path)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("networks cannot be made here")

    first, small, again, restored, nothing = done.stdout.split("==\n")[:5]
    routes = [each.partition("=\n")[0] for each in (first, small, again, restored, nothing)]
    assert f"{way} " in small.partition("=\n")[2]
    assert any(line.startswith(f"{address} {way}") and "mtu 1400" in line
               for line in routes[1].splitlines())  # fmt: skip
    assert routes[2] == f"failed\n{routes[1]}"
    assert routes[3] == routes[4] == routes[0]
    assert "mtu" not in routes[0]


def test_a_cpu_gets_its_limits_back(tmp_path: Path) -> None:
    before = {"scaling_max_freq": "1200000\n", "scaling_governor": "powersave\n"}
    cpus = [tmp_path / f"cpu{number}" / "cpufreq" for number in (0, 1)]
    for folder in cpus:
        folder.mkdir(parents=True)
        for name, content in before.items():
            (folder / name).write_text(content)
    ((fix,),) = (found.fix for found in findings_of(said("health/power/throttled", True)()))
    do, back = (
        each.replace("/sys/devices/system/cpu", str(tmp_path)).replace("/run", str(tmp_path))
        for each in (fix.command, undo(fix))
    )
    unlimited = f"for f in {tmp_path}/cpu*/cpufreq/*; do echo other > $f; done"

    assert run(f"cpupower() {{ {unlimited}; }}; {do}", tmp_path).returncode == 0
    changed = [files(folder) for folder in cpus]
    assert run(f"{back}; {back}", tmp_path).returncode == 0

    assert changed == [dict.fromkeys(before, "other\n")] * 2
    assert [files(folder) for folder in cpus] == [before] * 2


@pytest.mark.parametrize(("service", "undone"), [("timesyncd", False), (None, True)])
def test_a_clock_that_was_kept_already_stays_so(service: str | None, undone: bool) -> None:
    seen = told(home(), "garage", "health/clock/service", service)
    (found,) = findings_of(change(seen, "garage", clock_offset_s=3600.0))

    assert (found.fix[0].undo is not None) == undone
