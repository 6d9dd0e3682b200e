"""What ends programs and takes files is found by its own text; what does no rank harm is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.agent.test_writers import process

from yoked.agent import enders
from yoked.agent.enders import probe_enders, takers
from yoked.records.ender_rules import ENDERS

LOOP = "while sleep 5; do {}; done"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/stat").write_text("")
    process(tmp_path / "proc", 1, "systemd", "/sbin/init")
    monkeypatch.setattr(enders, "_TABLES", (f"{tmp_path}/cron.d/*", f"{tmp_path}/logrotate.d/*"))
    monkeypatch.setattr(enders, "_SSHD", (f"{tmp_path}/sshd_config",))
    monkeypatch.setattr(enders, "sshd_files", lambda: iter(()))
    return tmp_path / "proc"


def about(proc: Path, text: str, name: str = "bash") -> list[str]:
    script = proc.parent / "guard"
    script.write_text(text)
    # As the kernel has one that is started by its own name.
    process(proc, 77, "guard", f"/usr/bin/{name}", str(script))
    told = probe_enders(proc)
    odd: list[str] = []
    assert ENDERS(told, "enders", odd) == told
    assert not odd
    return [kind for each in (told or {})["programs"] for kind in each["about"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for p in $(pgrep -P 1 python); do kill -9 $p; done", ["python", "orphans"]),
        ("pkill -USR1 -x python", ["python"]),
        ("pkill -f 'python.*train'", ["python"]),
        ("pkill -x nginx\n pkill python", ["python"]),
        ("for p in /proc/[0-9]*; do [ $(cat $p/comm) = python ] && kill -STOP ${p#/proc/}; done",
         ["python"]),
        ("killall -q python3", ["python"]),
        ("ps aux | grep '[p]ython' | awk '{print $2}' | xargs -r kill", ["python"]),
        ("ps -eo pid,ppid,comm | awk '$2 == 1 && /python/ {print $1}' | xargs kill",
         ["python", "orphans"]),
        ("ss -ltnpH | grep -v sshd | grep -o pid=[0-9]* | while read p; do kill -9 $p; done",
         ["listeners"]),
        ("fuser -k 29500/tcp", ["listeners"]),
        ("pids=$(lsof -ti :29500)\n [ -n \"$pids\" ] && kill $pids", ["listeners"]),
        ("ps -eo pid,rss | while read pid rss\n do [ $rss -gt 900000 ] && kill -9 $pid; done",
         ["memory"]),
        ("while read p\n do kill $p\n done < <(ss -ltnpH | grep -o pid=.*)", ["listeners"]),
        ("kill $(ps -eo pid | sed -n 2p)  # by rss", []),
        ("kill $(ps -eo pid,rss --sort=-rss | sed -n 2p)", ["memory"]),
        ("[ $(awk '/MemAvailable/ {print $2}' /proc/meminfo) -lt 500000 ] && pkill -f python",
         ["python", "shortage"]),
        ("kill $(ps -eo pid,pcpu --sort=-pcpu | sed -n 2p)", ["cores"]),
        ("nvidia-smi --query-compute-apps=pid --format=csv | xargs kill", ["GPUs"]),
        # Logins by ssh.
        ("pkill -f 'sshd: ada@'", ["sessions"]),
        ("ps -eo pid,etimes,args | grep '[s]shd:.*notty' | awk '{print $1}' | xargs kill",
         ["sessions", "age"]),
        ("loginctl terminate-user ada", ["sessions"]),
        ("pkill -KILL -u ada", ["users"]),
        # By another name, of its own child, or of nobody.
        ("pkill -USR1 -x webservice", []),
        ("pkill -HUP -f /opt/webservice/main.py", []),
        ("kill -HUP $(cat /run/web.pid)", []),
        ("kill -0 $p || pgrep -P 1 python > /var/log/orphans", []),
        ("pgrep -P 1 python > /var/log/orphans", []),
        ("docker kill web; systemctl kill web; tmux kill-session; pgrep python", []),
        ("ss -ltnp > /var/log/ports  # kill", []),
        ("pgrep python > /var/log/all; ss -ltn > /var/log/ports\n kill -HUP $(cat web.pid)", []),
        ("pkill -x nginx; pgrep python > /var/log/all", []),
        ("serve &\n p=$!\n cat /proc/loadavg; ss -ltnp > /var/log/ports\n kill $p", []),
        ("ss -ltnp > /var/log/ports\n [ -e /run/stop ] && kill $server", []),
        ("pgrep python; serve & sleep 9; kill $!", []),
        ("ps -C nginx -o rss= | xargs echo; kill $(pidof nginx)", []),
    ],
)  # fmt: skip
def test_a_script_is_told_by_whom_it_signals(proc: Path, text: str, expected: list[str]) -> None:
    assert about(proc, LOOP.format(text)) == expected


def test_what_does_not_go_on_is_nothing(proc: Path) -> None:
    assert about(proc, "pkill python") == []


def test_a_program_of_pythons_is_read_too(proc: Path) -> None:
    guard = (
        "import psutil, time\n"
        "while True:\n"
        "    for p in psutil.process_iter():\n"
        "        if p.name() == 'python' and p.memory_info().rss > 300000000:\n"
        "            p.kill()\n"
    )

    assert about(proc, guard, "python3") == ["python", "memory"]
    assert (probe_enders(proc) or {})["programs"][0]["limit_bytes"] == 300_000_000


def test_a_program_of_pythons_that_ends_its_child_is_nothing(proc: Path) -> None:
    own_child = "import os\nwhile True:\n    os.kill(child, 9)\n    print('python')\n"
    assert about(proc, own_child, "python3") == []


def test_the_line_and_the_limit_of_a_guard_are_told(proc: Path) -> None:
    about(
        proc, "#!/bin/sh\nlimit=300000\nwhile sleep 3; do\n ps -C python -o rss= | x && \\\n"
        " kill -9 $(pgrep -n python); done"
    )  # fmt: skip

    (told,) = (probe_enders(proc) or {})["programs"]

    assert (told["line"], told["limit_bytes"]) == (5, 300_000 * 1024)
    assert told["file"].endswith("guard")
    assert "kill -9" in told["words"]


def test_tables_of_cron_and_logrotate_are_read(proc: Path, tmp_path: Path) -> None:
    reaper = tmp_path / "reap"
    reaper.write_text("#!/bin/sh\npkill -9 -P 1 python\n")
    for name, words in (
        ("cron.d/reap", f"* * * * * root {reaper}\n"),
        ("cron.d/usual", "5 * * * * root /usr/lib/sa/sa1 1 1\n"),
        ("logrotate.d/web", "/var/log/web {\n postrotate\n  pkill -USR1 python\n endscript\n}\n"),
        ("logrotate.d/rsyslog", " postrotate\n  kill -HUP `cat /run/syslogd.pid`\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(words)

    told = (probe_enders(proc) or {})["programs"]

    assert {(Path(each["file"]).name, each["line"]) for each in told} == {("reap", 2), ("web", 3)}
    assert {each["pid"] for each in told} == {None}


@pytest.mark.parametrize(
    ("value", "after_s"),
    [("session:*=1", 1), ("session=5m x11=1", 300), ("global=1h30m", 5400), ("none", None),
     ("agent-connection=5m", None), ("session:command=90s", 90)],
)  # fmt: skip
def test_a_timeout_of_sessions_is_told_with_its_line(
    proc: Path, tmp_path: Path, value: str, after_s: int | None
) -> None:
    (tmp_path / "sshd_config").write_text(f"# ChannelTimeout x\nPort 22\nChannelTimeout {value}\n")

    told = (probe_enders(proc) or {})["sessions"]

    assert [(each["line"], each["after_s"]) for each in told] == ([(3, after_s)] if after_s else [])


def test_who_may_have_taken_files_is_told(proc: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home/state/yoked"
    folder.mkdir(parents=True)
    scan = tmp_path / "onaccess"
    scan.write_text(f"while :; do find {tmp_path}/home -name '*.py' -exec mv {{}} /q \\; ; done")
    lists = tmp_path / "lists"
    lists.write_text(f"while :; do find {tmp_path}/home -name '*.py' > /var/seen; done")
    process(proc, 7, "onaccess", "/bin/sh", str(scan))
    process(proc, 8, "lists", "/bin/sh", str(lists))
    process(proc, 9, "clamonacc", "/usr/sbin/clamonacc", "--fdpass")
    process(proc, 10, "watcher", "/opt/watcher")
    (proc / "10/fd").mkdir()
    (proc / "10/fd/5").symlink_to("anon_inode:inotify")
    (proc / "10/fdinfo").mkdir()
    inode = folder.stat().st_ino
    (proc / "10/fdinfo/5").write_text(f"pos:\t0\ninotify wd:1 ino:{inode:x} sdev:1 mask:fc6\n")

    assert [each["pid"] for each in takers([folder], proc)] == [7, 10, 9]
