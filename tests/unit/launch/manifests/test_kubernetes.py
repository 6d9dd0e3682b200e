"""Manifests for Kubernetes: right by its schemas, and right when a kubelet runs them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.launch.manifests.kubernetes import (
    KubernetesOptions,
    label_of,
    manifest,
)
from yoked.launch.manifests.spec import ManifestSpec, Program

# Words of a person, of a shell and of Kubernetes, and some that YAML takes for something else.
AWKWARD = ("it's", "$(HOME)", "$HOME", "$$", "a\nb", "", "1e3", "no", "y", "0x1f", "null", "- a")
SPEC = ManifestSpec(
    run="r",
    nodes=2,
    ranks_per_node=2,
    restarts=3,
    program=Program(kind="module", name="yoked.train", args=("--depth=8", "--run", "r")),
)
OPTIONS = KubernetesOptions(image="registry.local/train:1")
FULL = replace(SPEC, gpus_per_node=8, cpus_per_node=64, interface="eth*", adapters="mlx5_0")
FULL_OPTIONS = replace(OPTIONS, namespace="team", storage="runs")


def documents(
    spec: ManifestSpec = SPEC, options: KubernetesOptions = OPTIONS
) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest(spec, options).text))


def container(spec: ManifestSpec = SPEC, options: KubernetesOptions = OPTIONS) -> dict[str, Any]:
    job = documents(spec, options)[2]
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def as_kubelet(word: str, variables: dict[str, str]) -> str:
    """Expand a word as the documentation of `args` has it: $(NAME) is a value, $$ a dollar."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, word)


def run_pod(stage: Any, made: dict[str, Any], index: int) -> tuple[int, str]:
    """Run a container's command as a kubelet would, with a stand-in for python."""
    environment = {
        entry["name"]: as_kubelet(entry["value"], {}) for entry in made["env"] if "value" in entry
    }
    environment["JOB_COMPLETION_INDEX"] = str(index)
    words = [as_kubelet(word, {"HOME": "/root"}) for word in [*made["command"], *made["args"]]]
    found: tuple[int, str] = stage.run(words, environment)
    return found


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize(("spec", "options"), [(SPEC, OPTIONS), (FULL, FULL_OPTIONS)])
def test_job_and_service_are_right_by_the_schemas_of_kubernetes(
    spec: ManifestSpec, options: KubernetesOptions, version: str
) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="it has the schemas")

    for document in documents(spec, options):
        # strict refuses keys that the schema does not know.
        validator.validate(document, version, strict=True)


def test_each_argument_reaches_the_program_as_it_was_given(stage: Any) -> None:
    program = Program(kind="script", name="my script.py", args=AWKWARD)

    status, said = run_pod(stage, container(replace(SPEC, program=program)), index=1)

    assert (status, said) == (0, "")
    argv = stage.calls()[0]["argv"]
    assert argv[-len(AWKWARD) - 2 :] == ["--", "my script.py", *AWKWARD]


# Unicode as bash and files have it: no half of a pair.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(word=TEXT, folder=TEXT)
@example(word="a\r\nb\x85\u2028\x07", folder="  \n\n it's\t")
def test_a_yaml_reader_has_each_word_and_the_script_as_they_are(word: str, folder: str) -> None:
    program = Program(kind="script", name="x.py", args=(word,), run_folder=folder)

    made = container(replace(SPEC, program=program))

    assert as_kubelet(made["args"][0], {}) == word
    script = as_kubelet(made["command"][2], {})
    assert f"if [ -f {shlex.quote(folder + '/run.json')} ]; then\n" in script


def test_a_pod_is_a_node_and_the_first_is_found_by_its_name(stage: Any) -> None:
    run_pod(stage, container(), index=1)

    argv = stage.calls()[0]["argv"]
    assert argv[2:] == [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--node-rank=1",
        "--master-addr=yoked-r-0.yoked-r",
        "--master-port=29500",
        *("-m", "--", "yoked.train", "--depth=8", "--run", "r"),
    ]


def test_the_service_names_the_pods_of_the_job_before_they_are_ready() -> None:
    _, service, job = documents()

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {
        "batch.kubernetes.io/job-name": job["metadata"]["name"],
    }
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_a_pod_goes_on_with_what_an_earlier_one_began(stage: Any) -> None:
    program = Program(
        kind="module",
        name="yoked.train",
        args=("--depth=8",),
        run_folder=str(stage.folder / "my runs"),
        resume_args=("--resume", "--run", "my runs"),
    )
    spec = replace(SPEC, program=program)
    run_pod(stage, container(spec), index=0)
    (stage.folder / "my runs").mkdir()
    (stage.folder / "my runs" / "run.json").write_text("{}")

    run_pod(stage, container(spec), index=0)

    first, second = (call["argv"][-3:] for call in stage.calls())
    assert first == ["--", "yoked.train", "--depth=8"]
    assert second == ["--resume", "--run", "my runs"]


def test_the_interface_is_picked_in_the_pod(stage: Any, snapshot: SnapshotAssertion) -> None:
    run_pod(stage, container(replace(SPEC, interface="l*")), index=0)
    status, said = run_pod(stage, container(replace(SPEC, interface="rocket")), index=0)

    environment = stage.calls()[0]["environment"]
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert len(stage.calls()) == 1
    assert status == 1
    assert said == snapshot


def test_ranks_get_a_secret_that_is_in_no_command_line() -> None:
    secret, *others = documents(FULL, FULL_OPTIONS)
    again, *_ = documents(FULL, FULL_OPTIONS)

    (text,) = secret["stringData"].values()
    assert (secret["kind"], len(text)) == ("Secret", 64)
    assert secret["stringData"] != again["stringData"]
    assert text not in str(others)
    (key,) = secret["stringData"]
    named = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": key}}
    assert str({"name": "YOKED_SECRET", "valueFrom": named}) in str(others)
    assert secret["metadata"]["namespace"] == "team"


def test_one_failed_node_fails_the_job_when_its_tries_are_used_up() -> None:
    spec = documents()[2]["spec"]

    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (3, 0)


def test_resources_are_those_asked_for() -> None:
    made = container(FULL)

    assert made["resources"] == {"requests": {"cpu": "64"}, "limits": {"nvidia.com/gpu": "8"}}
    assert {"name": "OMP_NUM_THREADS", "value": "32"} in made["env"]
    assert {"name": "NCCL_IB_HCA", "value": "mlx5_0"} in made["env"]


def test_without_storage_a_pod_has_a_folder_of_its_own_and_the_person_is_told(
    snapshot: SnapshotAssertion,
) -> None:
    made = manifest(SPEC, OPTIONS)

    volumes = documents()[2]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0] == {"name": "storage", "emptyDir": {}}
    assert made.notes == snapshot


def test_words_that_other_parsers_read_as_numbers_are_in_quotes() -> None:
    program = Program(kind="script", name="x.py", args=("1e3", "no", "y", "on", "plain"))

    text = manifest(replace(SPEC, program=program), OPTIONS).text

    for line in ('- "1e3"', '- "no"', '- "y"', '- "on"', '- "plain"'):
        assert f"{line}\n" in text


@pytest.mark.parametrize("run", ["20261121-143105", "My run_2!", "ä", "x" * 200, "a" * 46 + "-b"])
def test_any_name_of_a_run_gives_a_label_of_dns(run: str) -> None:
    label = label_of(run)

    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", label)
    # A pod's name has the index behind it.
    assert len(f"{label}-9999999999") <= 63


@pytest.mark.parametrize(
    "options",
    [
        {"image": "two words"},
        {"image": "x", "namespace": "Team"},
        {"image": "x", "storage": "a/b"},
    ],
)
def test_a_name_that_kubernetes_would_refuse_is_refused(
    options: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        KubernetesOptions(**options)
    assert str(caught.value) == snapshot
