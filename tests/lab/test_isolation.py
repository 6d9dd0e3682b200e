"""What is done in a host, with all the rights that it gives, does not reach the machine.

Every act here is one that would do no harm if it were not stopped: the clock is set to what it
is, a switch to its own value, and the kernel is asked for a reboot in words it does not know.
"""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

# Ends with the number of the error that a call of the C library gives, or "done".
CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = libc.{0}
print(ctypes.get_errno() if result == -1 else "done")
"""
# The same for opening a file to write.
OPEN_TO_WRITE = """
import os, sys
try:
    os.close(os.open(sys.argv[1], os.O_WRONLY))
except OSError as problem:
    print(problem.errno)
else:
    print("open")
"""
REFUSED = {str(errno.EPERM), str(errno.EACCES), str(errno.EROFS)}
# A kernel without modules does not know the call.
NO_MODULES = {str(errno.ENOSYS)}
# A new user namespace gives all capabilities again, over what belongs to that namespace. Tries
# what these allow, and ends with what came of each: the number of an error, or "done".
WITH_NEW_CAPABILITIES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(result):
    print(ctypes.get_errno() if result == -1 else "done", flush=True)
def switch():
    try:
        os.close(os.open("/proc/sys/kernel/panic", os.O_WRONLY))
    except OSError as problem:
        return problem.errno
    return "done"
# CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID
if libc.unshare(0x10000000 | 0x20000 | 0x20000000):
    raise SystemExit("no user namespaces here")
try:
    with open("/proc/self/uid_map", "w") as table:
        table.write("0 0 1")
except OSError:
    pass
if os.fork():
    os.wait()
else:
    attempt(libc.mount(b"none", b"/proc/sys", None, 0x1020, None))
    attempt(libc.umount2(b"/proc/sys", 0))
    print(switch())
    # A new one has nothing mounted over it.
    attempt(libc.mount(b"none", b"/proc", b"proc", 0, None))
    print(switch())
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as up:
        yield up


@pytest.fixture(params=["as a program", "as root"])
def as_root(request: pytest.FixtureRequest) -> bool:
    """Both are the same in a lab of root."""
    return bool(request.param == "as root")


def python(host: LabHost, program: str, *arguments: str, as_root: bool = False) -> str:
    words = [sys.executable, "-I", "-S", "-c", program, *arguments]
    return host.run(words, as_root=as_root).stdout.strip()


def test_the_clock_cannot_be_set(lab: Lab, as_root: bool) -> None:
    done = lab.host("alpha").run(["date", "-s", "now"], check=False, as_root=as_root)

    assert done.returncode == 1
    assert "cannot set date" in done.stderr


def test_the_machine_cannot_be_rebooted(lab: Lab, as_root: bool) -> None:
    # Rights are looked at first, then the magic words, which these are not.
    said = python(lab.host("alpha"), CALL.format("syscall(169, 0, 0, 0, 0)"), as_root=as_root)

    # Root of a user namespace may, and ends its own PID namespace with it; reboot(2).
    own_only = {str(errno.EINVAL)} if as_root and not lab.is_root else set()
    assert said in REFUSED | own_only


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls differ")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param("syscall(175, 0, 0, b'')", id="init_module"),
        pytest.param("syscall(313, -1, b'', 0)", id="finit_module"),
        pytest.param("syscall(176, b'no_such_module', 0)", id="delete_module"),
        pytest.param("syscall(246, 0, 0, 0, 0)", id="kexec_load"),
    ],
)
def test_the_kernel_cannot_be_changed(lab: Lab, call: str, as_root: bool) -> None:
    said = python(lab.host("alpha"), CALL.format(call), as_root=as_root)

    assert said in REFUSED | NO_MODULES


def test_swap_cannot_be_switched(lab: Lab) -> None:
    said = python(lab.host("alpha"), CALL.format("swapoff(b'/no/such/file')"))

    assert said in REFUSED | NO_MODULES


def test_nothing_can_be_mounted(lab: Lab) -> None:
    host = lab.host("alpha")

    said = python(host, CALL.format("mount(b'none', b'/mnt', b'tmpfs', 0, None)"))

    assert said in REFUSED


@pytest.mark.parametrize("where", ["/proc/sys", "/sys", "/proc/sysrq-trigger"])
def test_what_is_read_only_cannot_be_made_writable(lab: Lab, where: str) -> None:
    if not Path(where).exists():
        pytest.skip("this kernel does not have it")
    # MS_REMOUNT | MS_BIND, without MS_RDONLY.
    call = CALL.format(f"mount(b'none', b'{where}', None, 0x1020, None)")

    assert python(lab.host("alpha"), call) in REFUSED | {str(errno.EINVAL)}


SWITCHES_OF_THE_MACHINE = [
    *("/proc/sys/kernel/panic", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/threads-max"),
    *("/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/file-max"),
    *("/proc/sysrq-trigger", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/kcore"),
]


@pytest.mark.parametrize("path", SWITCHES_OF_THE_MACHINE)
def test_a_switch_of_the_whole_machine_cannot_be_opened_to_write(
    lab: Lab, path: str, as_root: bool
) -> None:
    if not Path(path).exists():
        pytest.skip("this kernel does not have it")

    assert python(lab.host("alpha"), OPEN_TO_WRITE, path, as_root=as_root) in REFUSED


def test_a_new_user_namespace_does_not_give_the_switches_back(lab: Lab) -> None:
    words = [sys.executable, "-I", "-S", "-c", WITH_NEW_CAPABILITIES]
    done = lab.host("alpha").run(words, check=False)

    if done.returncode:
        assert done.stderr == "no user namespaces here\n"
        return
    remount, unmount, switch, mount, new_switch = done.stdout.split()
    assert {switch, new_switch} <= REFUSED
    if lab.is_root:
        # Of an ordinary user, these switches are not; what lies over them protects nothing.
        assert {remount, unmount, mount} <= REFUSED | {str(errno.EINVAL)}


def test_the_machines_disks_cannot_be_had_as_devices(lab: Lab, as_root: bool) -> None:
    disks = [path.name for path in Path("/sys/class/block").glob("*")]
    host = lab.host("alpha")

    devices = host.run(["ls", "-A", "/dev"]).stdout.split()
    # Major 1, minor 3 is /dev/null; the right to make it is that to make any.
    made = host.run(["mknod", "/tmp/disk", "c", "1", "3"], check=False, as_root=as_root)

    assert set(devices).isdisjoint(disks)
    assert made.returncode == 1
    assert "Operation not permitted" in made.stderr


def test_devices_work_but_keep_owner_and_mode(lab: Lab) -> None:
    host = lab.host("alpha")
    mode = f"{Path('/dev/null').stat().st_mode & 0o777:o}"

    done = host.run(["chmod", mode, "/dev/null"], check=False)
    used = host.run(["sh", "-c", "echo gone > /dev/null && head -c 4 /dev/zero | wc -c"])

    assert done.returncode == 1
    assert used.stdout.strip() == "4"


def test_processes_of_the_machine_cannot_be_ended(lab: Lab, as_root: bool) -> None:
    with subprocess.Popen(["sleep", "1000"]) as outside:
        try:
            kill = ["kill", "-9", str(outside.pid)]
            done = lab.host("alpha").run(kill, check=False, as_root=as_root)
            is_alive = outside.poll() is None
        finally:
            outside.kill()

    assert done.returncode != 0
    assert is_alive


def test_a_host_that_ends_all_it_can_see_ends_only_itself(lab: Lab) -> None:
    with subprocess.Popen(["sleep", "1000"]) as outside:
        try:
            program = "import os, signal; os.kill(-1, signal.SIGKILL)"
            python(lab.host("beta"), program)
            is_alive = outside.poll() is None
        finally:
            outside.kill()

    assert is_alive
    assert lab.host("alpha").run(["hostname"]).stdout == "alpha\n"
    # The ssh server is among what was ended.
    lab.stop_host("beta")
    lab.start_host("beta")
    assert lab.host("beta").run(["hostname"]).stdout == "beta\n"


def test_a_hosts_firewall_is_its_own(lab: Lab) -> None:
    table = f"test{secrets.token_hex(4)}"
    rules = f"table inet {table} {{ chain input {{ type filter hook input priority 0; }}; }}"

    lab.host("alpha").run(["nft", rules], as_root=True)

    lists = ["nft", "list", "tables"]
    seen = [lab.host(name).tool(lists).stdout for name in ("alpha", "beta")]
    of_switch = lab.switch.tool(lists).stdout
    lab.host("alpha").run(["nft", "delete", "table", "inet", table], as_root=True)
    assert [table in text for text in (*seen, of_switch)] == [True, False, False]
    if os.getuid() == 0:
        machine = subprocess.run(lists, capture_output=True, text=True, check=False)
        assert table not in machine.stdout


def test_a_host_may_change_its_own_links_and_settings_of_its_network(lab: Lab) -> None:
    host = lab.host("alpha")
    path = "/proc/sys/net/ipv4/ip_default_ttl"
    before = Path(path).read_text()

    host.run(["ip", "link", "set", "lo", "mtu", "9000"], as_root=True)
    host.run(["sh", "-c", f"echo 33 > {path}"], as_root=True)

    assert (host.read_text(path), Path(path).read_text()) == ("33\n", before)
    assert "mtu 9000" in host.run(["ip", "link", "show", "lo"]).stdout
    assert "mtu 9000" not in lab.host("beta").run(["ip", "link", "show", "lo"]).stdout


def test_a_hosts_name_changed_in_it_is_its_own(lab: Lab) -> None:
    before = os.uname().nodename

    python(lab.host("alpha"), CALL.format("sethostname(b'other', 5)"), as_root=True)

    assert os.uname().nodename == before
    assert lab.host("beta").run(["hostname"]).stdout == "beta\n"


def test_a_login_by_ssh_has_no_more_rights_than_a_program(lab: Lab) -> None:
    status = ["grep", "-E", "^Cap(Prm|Eff|Bnd)", "/proc/self/status"]
    by_exec = lab.host("alpha").run(status).stdout

    by_ssh = subprocess.run(
        ["ssh", "-F", str(lab.ssh_config), "alpha", *status[:2], f"'{status[2]}'", status[3]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert by_exec.count("\n") == 3
    assert by_ssh == by_exec


def test_a_hosts_first_process_has_no_more_rights_than_its_programs(lab: Lab) -> None:
    if not lab.is_root:
        pytest.skip("of an ordinary user's lab, all rights end with its user namespace")
    limits = [
        line
        for line in Path(f"/proc/{lab.host('alpha').pid}/status").read_text().splitlines()
        if line.startswith(("CapPrm", "CapEff", "CapBnd"))
    ]

    inside = lab.host("alpha").run(["grep", "-E", "^Cap(Prm|Eff|Bnd)", "/proc/self/status"]).stdout

    assert inside.splitlines() == limits
    # CAP_SYS_ADMIN, CAP_SYS_BOOT, CAP_SYS_TIME, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_MKNOD.
    bounding = int(limits[-1].split()[1], 16)
    assert not any(bounding >> number & 1 for number in (21, 22, 25, 16, 17, 27))


def test_memory_that_programs_share_by_key_is_a_hosts_own(lab: Lab) -> None:
    key = secrets.randbelow(2**30)
    # IPC_CREAT | 0600: segments outlive their maker, until their namespace ends.
    made = python(lab.host("alpha"), CALL.format(f"shmget({key}, 4096, 0o1600)"))

    find = CALL.format(f"shmget({key}, 0, 0)")
    seen = [python(lab.host(name), find) for name in ("alpha", "beta")]

    assert made == "done"
    assert seen == ["done", str(errno.ENOENT)]


def test_the_clock_of_the_machine_went_on(lab: Lab) -> None:
    inside = float(python(lab.host("alpha"), "import time; print(time.time())"))

    assert abs(inside - time.time()) < 60


@pytest.mark.parametrize("kind", ["jobs", "runs"])
def test_jobs_and_runs_of_the_machine_are_none_of_a_hosts(lab: Lab, kind: str) -> None:
    folder = Path.home() / ".local/state/yoked" / kind
    mine = folder / f"of-the-machine-{secrets.token_hex(4)}"
    mine.mkdir(parents=True)
    try:
        host = lab.host("alpha")
        made = host.run(["mkdir", str(folder / "of-the-host")])
        seen = host.run(["ls", str(folder)])
        host.run(["rmdir", str(folder / "of-the-host")])
    finally:
        mine.rmdir()

    assert (made.returncode, seen.stdout) == (0, "of-the-host\n")
    assert not (folder / "of-the-host").exists()
