"""Bundles: what must not be in one is not, and checks over it say what they said."""

from __future__ import annotations

import getpass
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.doctor.bundle import Redactor, bundle, read_saved, write_bundle
from yoked.errors import UsageError

MAC = "3c:7c:3f:aa:bb:cc"
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ3v0kQmV9pQ4l7n2wqf0dYc1w3uC9Jm6x8tYk5bZr1a"
FINGERPRINT = "Jm6x8tYk5bZr1aAAAIJ3v0kQmV9pQ4l7n2wqf0dYc1w"
# Each must be nowhere in a bundle, whatever it stands beside.
PLANTED = {
    "a token by its shape": "hf_AbCdEfGhIjKlMnOpQrSt",
    "a token by its name": "s3same-0pen",
    "a password in a URL": "hunter2",
    "a user in a URL": "proxyuser",
    "a password behind a flag": "swordfish",
    "a bearer": "c2VjcmV0LXRva2Vu",
    "a web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "a private key": "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gt",
    "a host key": HOST_KEY,
    "a fingerprint": FINGERPRINT,
    "a user": "annabel",
    "a user of another home": "konrad",
    "a user before an at": "friedrich",
    "a home elsewhere": "/data/people",
    "a MAC": MAC,
    "a MAC in a name": "3c7c3faabbcc",
    "a MAC in an address": "3e7c:3fff:feaa:bbcc",
    "a public address": "87.123.45.67",
    "a public address of version 6": "2a02:8070:1:2::5",
    "a machine's identity": "4fd1c0a97be34d2c",
    "something long": "9f0e6a1b2c3d4e5f9f0e6a1b2c3d4e5f",
}


def examination() -> dict[str, Any]:
    """One in JSON, with something planted in every corner."""
    attic = {
        "name": "friedrich@attic",
        "wanted": {"address": "192.168.77.1", "python": "/data/people/annabel/venv/bin/python"},
        "facts": {
            "user": "annabel",
            "home": "/data/people/annabel",
            "state": "/data/people/annabel/.local/state/yoked",
            "machine": "4fd1c0a97be34d2c",
            "boot": "9f0e6a1b2c3d4e5f9f0e6a1b2c3d4e5f",
            "kernel": "6.1.0.53-amd64",
            "cores": 8,
        },
        "interfaces": [{"name": "enx3c7c3faabbcc", "addresses": [{"address": "87.123.45.67"}]}],
        "health": {
            "environment": {
                "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrSt",
                "WANDB_API_KEY": "s3same-0pen",
                "http_proxy": "http://proxyuser:hunter2@proxy.lan:3128",
                "GLOO_SOCKET_IFNAME": "eth0",
                "NCCL_DEBUG": "INFO password=swordfish",
            },
            "routes": {
                "2a02:8070:1:2::5": {"source": "87.123.45.67", "mac": MAC},
                "fe80::3e7c:3fff:feaa:bbcc": {"mac": MAC.upper()},
                "192.168.77.2": {"mac": "00:00:00:00:00:00"},
            },
            "processes": {"busy": [{"user": "konrad", "command": "blender /home/konrad/f.blend"}]},
            "folders": {"home": {"path": "/data/people/annabel"}},
        },
    }
    said = (
        f"Offending ED25519 key: ssh-ed25519 {HOST_KEY}\nSHA256:{FINGERPRINT}\n"
        "Authorization: Bearer c2VjcmV0LXRva2Vu --token swordfish\n"
        f"{PLANTED['a web token']}\n-----BEGIN OPENSSH PRIVATE KEY-----\n"
        f"{PLANTED['a private key']}\n-----END OPENSSH PRIVATE KEY-----"
    )
    cellar = {"name": "cellar", "failure": {"kind": "denied", "text": said}}
    return {"hosts": [attic, cellar], "dials": [{"purpose": "bulk", "rtt_s": 0.25}]}


FINDINGS = [
    {
        "check": "host-key",
        "saw": "friedrich@attic is 87.123.45.67",
        "fix": [{"command": "ssh-copy-id konrad@87.123.45.67", "host": "friedrich@attic"}],
    }
]
FLEET = '[fleet]\nname = "home"\n# annabel, 87.123.45.67\n[[host]]\nname = "friedrich@attic"\n'


def refusal(act: Callable[[], object]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        act()
    return caught.value


@pytest.fixture
def files() -> dict[str, str]:
    return bundle(examination(), FINDINGS, "on friedrich@attic: ~ is /home/konrad", FLEET)


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_nobodys_business_is_nowhere(files: dict[str, str], what: str) -> None:
    secret = PLANTED[what].lower()

    assert secret in json.dumps([examination(), FINDINGS, FLEET]).lower()
    assert [name for name, text in files.items() if secret in text.lower()] == []


def test_what_the_checks_read_is_still_there(files: dict[str, str]) -> None:
    seen = json.loads(files["examination.json"])
    attic = seen["hosts"][0]

    assert attic["wanted"]["address"] == "192.168.77.1"
    assert attic["facts"]["cores"] == 8
    assert attic["facts"]["kernel"] == "6.1.0.53-amd64"
    assert attic["health"]["environment"]["GLOO_SOCKET_IFNAME"] == "eth0"
    assert attic["health"]["environment"]["http_proxy"].endswith("@proxy.lan:3128")
    assert attic["health"]["routes"]["192.168.77.2"] == {"mac": "00:00:00:00:00:00"}
    assert seen["hosts"][1]["failure"]["kind"] == "denied"
    assert seen["dials"] == examination()["dials"]


def test_the_same_has_the_same_stand_in_everywhere(files: dict[str, str]) -> None:
    seen = json.loads(files["examination.json"])
    attic = seen["hosts"][0]
    (public,) = (each["address"] for each in attic["interfaces"][0]["addresses"])
    findings = json.loads(files["findings.json"])

    assert findings[0]["saw"] == f"{attic['name']} is {public}"
    assert findings[0]["fix"][0]["host"] == attic["name"]
    assert f'name = "{attic["name"]}"' in files["yoked.toml"]
    assert attic["facts"]["state"] == f"{attic['facts']['home']}/.local/state/yoked"
    macs = {way["mac"].lower() for way in attic["health"]["routes"].values()}
    assert len(macs) == 2


def test_who_is_at_the_controller_is_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "wilhelmine")

    hide = Redactor({"controller": {"state": "/srv/wilhelmine/state"}})

    assert hide.text("state of wilhelmine: /srv/wilhelmine/state") == (
        "state of user1: /srv/user1/state"
    )


@pytest.mark.parametrize(
    "text",
    [
        "torch 2.13.0+cpu, Python 3.11.9, at 12:30:45",
        "10.0.0.7 192.168.1.36 172.17.0.1 100.64.0.3 127.0.1.1 ::1 fe80::1 fd7a:115c:a1e0::1",
        "ff:ff:ff:ff:ff:ff",
        "ports 32768-60999, MTU 1420",
        "root@attic: /root/venv/bin/python",
        "sudo ufw allow from 192.168.77.0/24 to any port 22 proto tcp",
        "the token that is wrong",
    ],
)
def test_what_tells_nothing_of_a_person_stays(text: str) -> None:
    assert Redactor({"hosts": [{"name": "attic"}]}).text(text) == text


def test_a_user_named_like_a_word_of_ours_changes_nothing_that_was_seen() -> None:
    data = {"hosts": [{"name": "a", "facts": {"user": "bulk"}}], "dials": [{"purpose": "bulk"}]}

    assert Redactor(data).data(data)["dials"] == [{"purpose": "bulk"}]


def test_a_bundle_is_read_back_as_a_file_of_its_own_is(tmp_path: Path) -> None:
    packed, plain = tmp_path / "b.zip", tmp_path / "e.json"
    write_bundle(packed, {"examination.json": '{"hosts": []}', "report.txt": "fine"})
    plain.write_text('{"hosts": []}')

    assert read_saved(packed) == read_saved(plain) == {"hosts": []}


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = tmp_path / "b.zip"
    file.write_text("by hand")

    assert str(refusal(lambda: write_bundle(file, {"report.txt": "fine"}))) == snapshot
    assert file.read_text() == "by hand"


def test_a_bundle_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert str(refusal(lambda: write_bundle(tmp_path / "nowhere" / "b.zip", {}))) == snapshot


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"findings": []}'])
def test_what_is_no_examination_is_refused(
    tmp_path: Path, text: str, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "e.json"
    file.write_text(text)

    problem = refusal(lambda: read_saved(file))
    assert str(problem) == snapshot
    assert "--bundle" in problem.fix[0]


def test_a_zip_of_something_else_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = tmp_path / "b.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("holiday.txt", "sun")

    assert str(refusal(lambda: read_saved(file))) == snapshot


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert str(refusal(lambda: read_saved(tmp_path / "e.json"))) == snapshot


SECRET = "Zm9v/YmFyK2Jhei9xdXg9PQ"


def with_secret() -> dict[str, Any]:
    """A secret of a launch that got into what hosts say, in several ways."""
    seen = examination()
    health = seen["hosts"][0]["health"]
    health["environment"]["YOKED_SECRET"] = SECRET
    health["processes"]["busy"].append(
        {"user": "konrad", "command": f"python -m yoked.train --note {SECRET}"}
    )
    seen["world"] = {
        "ok": False,
        "said": {
            "attic": "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIBbu\n"
            "-----END PRIVATE KEY-----",
            "garage": f"peer said {SECRET} and left",
            "study": "YOKED_SECRET='other-Secret' torchrun x.py; then other-Secret again",
        },
    }
    return seen


def test_the_secret_of_a_launch_is_nowhere_in_a_bundle(tmp_path: Path) -> None:
    seen, path = with_secret(), tmp_path / "b.zip"
    toml = f"[notify]\ncommand = \"curl -H 'Authorization: Bearer {SECRET}' https://example.org\"\n"

    write_bundle(path, bundle(seen, [], f"a report with {SECRET} in it", toml))

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        text = "\n".join(archive.read(name).decode() for name in names)
    assert SECRET not in text
    assert "MC4CAQAwBQYDK2VwBCIEIBbu" not in text
    assert "other-Secret" not in text
    # No file of a job's folder is among them: keys and certificates lie there.
    assert set(names) == {"examination.json", "findings.json", "report.txt", "yoked.toml"}


def test_a_report_that_unpacks_to_more_than_any_says_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("examination.json", b" " * (65 << 20))

    assert str(refusal(lambda: read_saved(path))) == snapshot


def test_a_report_that_is_nested_without_end_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)

    assert str(refusal(lambda: read_saved(path))) == snapshot
