"""What a program expected of a host and did not find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from yoked.diagnosis.absent import Place, absent_of, cpu_flag

HERE = Place(host="laptop", python="/home/me/venv/bin/python", folder="/job/work")
NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
NO_PEFT = "ModuleNotFoundError: No module named 'peft'"


def no_file(path: str) -> str:
    return f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}"


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ('parser.add_argument("--device-type", type=str, default="")', "--device-type=cpu"),
        ('parser.add_argument("-d", "--device", default="cuda")', "--device=cpu"),
        ('@click.option("--device", default="cuda")\ndef main(device): ...', "--device=cpu"),
        ('p.add_argument("--device", type=int)\np.add_argument("--no-cuda", action="store_true")',
         "--no-cuda"),
        ('p.add_argument("--cpu", action="store_true")', "--cpu"),
        ("from transformers import HfArgumentParser, TrainingArguments", "--use_cpu"),
        ("from transformers import Trainer, TrainingArguments", "TrainingArguments(use_cpu=True"),
        ("import lightning as L", 'Trainer(accelerator="cpu"'),
        ("from accelerate import Accelerator", "Accelerator(cpu=True"),
        ("device = 'cuda'\nexec(open('configurator.py').read())", "--device=cpu"),
    ],
)  # fmt: skip
def test_a_programs_own_flag_for_the_cpu_is_found_in_its_text(source: str, flag: str) -> None:
    assert (cpu_flag(source, ()) or "").startswith(flag)


@pytest.mark.parametrize("source", ["", "import torch", "def (", "x.add_argument(name)", "\0"])
def test_no_flag_is_made_up(source: str) -> None:
    assert cpu_flag(source, ()) is None


def test_a_flag_that_the_program_overrides_where_it_has_a_rank_is_not_told() -> None:
    # nanoGPT's train.py; its sample.py has no such line.
    source = """device = 'cuda'
exec(open('configurator.py').read())
if ddp:
    device = f'cuda:{ddp_local_rank}'
    torch.cuda.set_device(device)
"""

    assert cpu_flag(source, ()) is None


def test_a_flag_that_was_given_and_did_not_help_is_not_told_again() -> None:
    source = 'p.add_argument("--device")'

    assert cpu_flag(source, ("--device=cpu",)) is None
    assert cpu_flag(source, ("--device", "cpu")) is None


@pytest.mark.parametrize(
    "said",
    [
        NO_CUDA,
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_",
        "ValueError: device_ids and output_device arguments only work with single-device/multiple",
        "MisconfigurationException: No supported gpu backend found!",
    ],
)
def test_a_line_that_assumes_a_gpu_is_told_with_host_interpreter_and_line(said: str) -> None:
    absent = absent_of(said, "", "train.py:41 in main", HERE)

    assert absent is not None
    assert absent.cause == "gpu-missing"
    assert "/home/me/venv/bin/python on laptop" in absent.what
    assert absent.fix[0].startswith("at train.py:41 in main: ")


def test_a_cpu_build_on_a_host_with_a_gpu_is_told_as_that() -> None:
    made = replace(HERE, has_gpu=True, python_made=True)

    absent = absent_of(NO_CUDA, "", None, made)
    other = absent_of("RuntimeError: No CUDA GPUs are available", "", None, made)

    assert absent is not None
    assert other is not None
    assert absent.fix[0] == "yoked install --cuda --anew --host laptop"
    assert "its torch is built for the CPU" in absent.what
    assert len(other.fix) == 1


def test_a_missing_module_is_told_with_the_line_that_brings_its_package() -> None:
    absent = absent_of(NO_PEFT, "", None, HERE)
    other = absent_of("ImportError: No module named 'sklearn.svm'", "", None, HERE)

    assert absent is not None
    assert other is not None
    assert absent.cause == "module-missing"
    assert absent.what == "/home/me/venv/bin/python on laptop has no module peft"
    assert absent.fix == ("/home/me/venv/bin/python -m pip install peft    on laptop",)
    assert "pip install scikit-learn " in other.fix[0]


def test_where_yoked_made_the_environment_yoked_installs_into_it() -> None:
    made = replace(HERE, python_made=True)

    bare = absent_of(NO_PEFT, "", None, made)
    listed = absent_of(NO_PEFT, "", None, replace(made, names=("requirements.txt",)))

    assert bare is not None
    assert listed is not None
    assert bare.fix == ("yoked install -r requirements.txt    with a line peft in that file",)
    assert listed.fix == ("yoked install -r requirements.txt",)


def test_an_import_that_another_error_hides_is_found_in_the_traceback() -> None:
    hidden = "ModuleNotFoundError: Could not import module 'Trainer'. Are this object's"
    trace = f"Traceback …\n{NO_PEFT}\n\nThe above exception was the direct cause …\n{hidden}\n"

    absent = absent_of(hidden, trace, None, HERE)

    assert absent is not None
    assert absent.what.endswith("no module peft")
    assert absent_of("ValueError: no", trace, None, HERE) is None


@pytest.mark.parametrize(
    ("said", "package"),
    [
        ("The Trainer requires `accelerate>=1.1.0`: Please run `pip install transformers[torch]`",
         "'transformers[torch]'"),
        ("This needs it: pip install -U 'bitsandbytes>=0.43.1'.", "'bitsandbytes>=0.43.1'"),
        ("requires the protobuf library. Try: pip install protobuf.", "protobuf"),
    ],
)  # fmt: skip
def test_a_package_that_an_import_asks_for_by_itself_is_told_for_the_right_interpreter(
    said: str, package: str
) -> None:
    absent = absent_of(f"ImportError: {said}", "", None, HERE)

    assert absent is not None
    assert absent.fix == (f"/home/me/venv/bin/python -m pip install {package}    on laptop",)
    assert absent_of(f"ValueError: {said}", "", None, HERE) is None


def test_a_part_of_the_programs_own_package_is_not_looked_for_at_an_index() -> None:
    own = replace(HERE, names=("model", "train.py"))

    absent = absent_of("ModuleNotFoundError: No module named 'model.parts'", "", None, own)

    assert absent is not None
    assert not any("install" in line for line in absent.fix)
    assert any(line.startswith("yoked run --include model/parts ") for line in absent.fix)


def test_a_file_of_the_folder_that_did_not_travel_is_told_with_what_keeps_it() -> None:
    absent = absent_of(no_file("data/train set.bin"), "", None, HERE)
    folder = absent_of("RuntimeError: Parent directory out does not exist.", "", None, HERE)

    assert absent is not None
    assert folder is not None
    assert absent.cause == "file-missing"
    assert absent.what == "data/train set.bin is not in the copy of the program's folder on laptop"
    assert absent.fix[0].startswith("yoked run --include 'data/train set.bin' …")
    assert folder.what.startswith("out is not in the copy")


def test_a_file_outside_of_the_folder_is_brought_by_hand() -> None:
    absent = absent_of(no_file("/data/train.bin"), "", None, HERE)

    assert absent is not None
    assert absent.fix[0].startswith("scp -r /data/train.bin laptop:/data/train.bin ")
    assert "yoked push FOLDER" in absent.fix[1]
    assert absent_of(no_file("../x"), "", None, HERE) == absent_of(
        no_file("/job/x"), "", None, HERE
    )


def test_alone_nothing_was_sent_and_nothing_is_said_of_it() -> None:
    alone = replace(HERE, sent=False)

    for said in (no_file("x.bin"), no_file("/x.bin"), NO_PEFT):
        absent = absent_of(said, "", None, alone)
        assert absent is not None
        assert not any(word in " ".join(absent.fix) for word in ("scp", "--include", " on "))


def test_on_the_persons_own_machine_of_a_fleet_nothing_is_copied_to_itself() -> None:
    own = replace(HERE, host=".", folder="/state/../job/work")

    copied = absent_of(no_file("x.bin"), "", None, own)
    elsewhere = absent_of(no_file("/data/x.bin"), "", None, own)
    module = absent_of(NO_PEFT, "", None, own)

    assert copied is not None
    assert elsewhere is not None
    assert module is not None
    assert copied.what == "x.bin is not in the copy of the program's folder on this machine"
    assert copied.fix[0].startswith("yoked run --include x.bin")
    assert elsewhere.what == "/data/x.bin is not on this machine"
    assert "scp" not in elsewhere.fix[0]
    assert module.fix == ("/home/me/venv/bin/python -m pip install peft",)


def test_a_program_that_asserts_a_gpu_is_one_that_asks_for_it() -> None:
    trace = (
        '  File "/job/work/train.py", line 7, in <module>\n'
        "    assert torch.cuda.is_available(), why\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "AssertionError\n"
    )

    absent = absent_of("AssertionError", trace, "train.py:7 in <module>", HERE)

    assert absent is not None
    assert absent.cause == "gpu-missing"
    assert absent_of("AssertionError", trace.replace("cuda", "mps"), None, HERE) is None


def test_a_program_that_is_not_there_is_no_file() -> None:
    trace = 'File "/usr/lib/python3.12/subprocess.py", line 1955, in _execute_child'

    absent = absent_of(no_file("ninja"), trace, None, HERE)

    assert absent is not None
    assert absent.what == "there is no program ninja in the PATH of laptop"


@pytest.mark.parametrize(
    "said", ["ValueError: no", "OSError: [Errno 28] No space left", "FileNotFoundError: gone"]
)
def test_of_other_errors_nothing_is_said(said: str) -> None:
    assert absent_of(said, "", None, HERE) is None
