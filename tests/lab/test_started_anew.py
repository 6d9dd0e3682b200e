"""Several processes know one lab, and each may start its hosts anew."""

from __future__ import annotations

from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.process import until
from yoked.lab.pytest_plugin import LabUp
from yoked.lab.random_faults import RandomFault, random_faults


def test_a_host_that_another_process_started_anew_is_no_ghost(lab_up: LabUp) -> None:
    lab = lab_up("two-hosts-100mbit")
    other = Lab.open(lab.name)
    other.stop_host("alpha")
    other.start_host("alpha")

    lab.stop_host("beta")
    lab.start_host("beta")
    known = Lab.open(lab.name)
    were_alive = [known.host(name).alive for name in ("alpha", "beta")]
    lab.stop_host("alpha")

    assert were_alive == [True, True]
    assert not other.host("alpha").alive
    lab.start_host("alpha")
    other.refresh()
    assert other.host("alpha").run(["hostname"]).stdout == "alpha\n"


def test_random_faults_find_a_host_that_another_process_started_anew(lab_up: LabUp) -> None:
    lab = lab_up("two-hosts-100mbit")
    fault = RandomFault(("slow-link", "alpha", "10mbit"), after_s=0.0, for_s=60.0)
    other = Lab.open(lab.name)
    other.stop_host("alpha")
    other.start_host("alpha")

    with random_faults(lab, [fault]) as (record,):
        until(lambda: record.began_s is not None, 20, 0.05)
        active = [each.kind for each in faults.active(lab)]
    lab.refresh()

    assert active == ["slow-link"]
    assert record.healed_s is not None
    assert faults.active(lab) == []
    assert lab.host("alpha").process == other.host("alpha").process
