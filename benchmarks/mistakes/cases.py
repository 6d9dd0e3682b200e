"""Each command's three commonest mistakes, and what a person types next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """line: what is typed after `yoked`. fix: a part of what is said to do about it.

    then: the lines that a person types next, by that fix; each must end with status 0.
    """

    line: str
    fix: str
    then: tuple[str, ...] = ()


def meant(line: str, right: str) -> Mistake:
    """A mistyped word, of which the fix is the whole line as it was meant."""
    return Mistake(line, f"yoked {right}", (f"yoked {right}",))


TRAIN = "--depth 1 --max-seq-len 64 --total-batch-size 128 --num-iterations 2 --dry-run"
BENCH = "--depth 1 --max-seq-len 64 --total-batch-size 128 --processes 1 --steps 2"

# What no argument means; those of SLOW are interrupted once they are at work.
SLOW = ("up", "train", "bench", "probe")

MISTAKES = {
    "up": (
        # A finding of the doctor, with the lines that mend it.
        Mistake("up nosuchhost --fleet up.toml", "put it into ~/.ssh/config"),
        Mistake("up . . --fleet up.toml", "name each host once", ("yoked hosts",)),
        meant("up . --yse --depth 1", "up . --yes --depth 1"),
    ),
    "init": (
        Mistake("init nosuchhost", "HostName ADDRESS"),
        Mistake("init . .", "name each host once", ("yoked init . --fleet once.toml",)),
        Mistake(
            "init . --ranks 0 --fleet r.toml",
            "--ranks 1",
            ("yoked init . --ranks 1 --fleet r.toml",),
        ),
    ),
    "trust": (
        Mistake("trust", "yoked trust FILE", ("yoked trust {fleet}",)),
        Mistake("trust none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("trust torn.toml", "https://toml.io"),
    ),
    "install": (
        Mistake("install --cuda --cpu", "give one, or none", ("yoked install --check",)),
        Mistake("install --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("install -r nosuch.txt", "-r FILE"),
        Mistake(
            "install --check --host gamma --fleet {fleet}",
            "there are: alpha, beta",
            ("yoked install --check --host beta --fleet {fleet}",),
        ),
    ),
    "hosts": (
        meant("hosts --flet {fleet}", "hosts --fleet {fleet}"),
        Mistake("hosts --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("hosts --fleet misspelt.toml", "mend misspelt.toml"),
    ),
    "data": (
        meant("data lst", "data list"),
        Mistake("data prepare nodata", "the path of a folder", ("yoked data prepare text",)),
        Mistake("data download --shards 0", "give 1 or more"),
    ),
    "push": (
        Mistake("push nofolder --fleet {fleet}", "name the folder that holds the data"),
        Mistake(
            "push text --name My-Text --fleet {fleet}",
            "--name my_text",
            ("yoked push text --name my_text --fleet {fleet}",),
        ),
        Mistake(
            "push --remove nodata --fleet {fleet}", "yoked push", ("yoked push --fleet {fleet}",)
        ),
    ),
    "doctor": (
        meant("doctor --fleet {fleet} --jsn", "doctor --fleet {fleet} --json"),
        Mistake(
            "doctor --only own-name",
            "yoked doctor --fix --only CHECK",
            ("yoked doctor --fix --yes --only own-name --fleet {fleet}",),
        ),
        Mistake("doctor --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "probe": (
        Mistake("probe --depth 0", "give 1 or more"),
        Mistake("probe --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        meant("probe --quik --depth 1 --fleet {fleet}", "probe --quick --depth 1 --fleet {fleet}"),
    ),
    "plan": (
        Mistake(
            "plan --fleet unprobed.toml",
            "--simulate two-laptops",
            ("yoked plan --simulate two-laptops",),
        ),
        Mistake(
            "plan --simulate laptops",
            "--simulate two-laptops",
            ("yoked plan --simulate two-laptops",),
        ),
        Mistake(
            "plan --params 760Q",
            "write it as in 760M",
            ("yoked plan --params 760M --hosts 2 --step-s 1",),
        ),
        Mistake(
            "plan --params 4.5M --trainable 1.1B",
            "--params counts all parameters",
            ("yoked plan --params 1.1B --trainable 4.5M",),
        ),
    ),
    "bench": (
        Mistake(
            f"bench --compare int3 {BENCH}",
            "choose one of",
            (f"yoked bench --compare int8 {BENCH}",),
        ),
        Mistake(
            f"bench --num-iterations 5 {BENCH}", "--steps says how many", (f"yoked bench {BENCH}",)
        ),
        Mistake("bench --plot bench", "--plot bench.png"),
    ),
    "train": (
        meant(f"train --fleet . --depht 1 {TRAIN[10:]}", f"train --fleet . --depth 1 {TRAIN[10:]}"),
        meant(f"train --fleet . --besides {TRAIN}", f"train --fleet . --beside {TRAIN}"),
        Mistake(
            "train --data nodata --dry-run",
            "the path of a folder",
            (f"yoked train --data text --vocab-size 300 {TRAIN}",),
        ),
        Mistake(
            "train --total-batch-size 1000 --max-seq-len 64 --dry-run",
            "--total-batch-size 960 or 1024",
            ("yoked train --total-batch-size 1024 --max-seq-len 64 --depth 1 --dry-run",),
        ),
    ),
    "run": (
        Mistake("run", "yoked run -- SCRIPT.py ARGS", ("yoked run -- hello.py",)),
        Mistake("run -- nofile.py", "cd to the program's folder", ("yoked run -- hello.py",)),
        Mistake(
            "run --rank 2 -- hello.py", "yoked run --help", ("yoked run --ranks 2 -- hello.py",)
        ),
        Mistake(
            'run --resume-args "\'x" -- hello.py',
            "--resume-args",
            ("yoked run --resume-args '--resume' -- hello.py",),
        ),
        Mistake(
            "run --outputs ../x -- hello.py",
            "--outputs 'out/*.pt'",
            ("yoked run --outputs 'out/*.pt' -- hello.py",),
        ),
        Mistake(
            "run --include /home/me/../x -- hello.py",
            "--include 'out/*.pt'",
            ("yoked run --include 'out/*.pt' -- hello.py",),
        ),
    ),
    "manifest": (
        meant(
            "manifest --for slurn --nodes 2 -- hello.py",
            "manifest --for slurm --nodes 2 -- hello.py",
        ),
        Mistake(
            "manifest --for slurm",
            "yoked manifest --for slurm --nodes 2 -- train --depth 8",
            ("yoked manifest --for slurm --nodes 2 -- train --depth 8",),
        ),
        Mistake("manifest", "yoked manifest --help", ("yoked manifest --help",)),
    ),
    "runs": (
        meant("runs --jsn", "runs --json"),
        Mistake("runs --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("runs night", "yoked runs --help", ("yoked runs",)),
    ),
    "watch": (
        Mistake("watch nigt --once", "did you mean night?", ("yoked watch night --once",)),
        Mistake("watch --port 8765", "yoked watch --web --port 8765"),
        Mistake("watch --web --once", "yoked watch --web"),
        Mistake("watch --web --port 70000", "--port 8765"),
        meant("watch night --once --jsn", "watch night --once --json"),
        Mistake("watch night --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "attach": (
        Mistake("attach nigt", "did you mean night?", ("yoked attach night",)),
        meant("attach night --jsn", "attach night --json"),
        Mistake("attach night --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "logs": (
        Mistake("logs nigt", "did you mean night?", ("yoked logs night",)),
        Mistake("logs night --rank 7", "", ("yoked logs night --rank 0",)),
        Mistake("logs night --host gamma", "", ("yoked logs night",)),
    ),
    "diagnose": (
        Mistake("diagnose nigt", "did you mean night?", ("yoked diagnose night",)),
        meant("diagnose night --jsn", "diagnose night --json"),
        Mistake("diagnose --pid 4194305", "pgrep -af python"),
        Mistake("diagnose night --pid 1", "yoked diagnose --pid 1"),
        # That run is over.
        Mistake("diagnose night --stacks", "yoked logs night", ("yoked logs night",)),
        Mistake("diagnose night --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "trace": (
        Mistake("trace nigt", "did you mean night?", ("yoked trace night",)),
        Mistake("trace --steps 0", "--steps 10"),
        Mistake("trace --wait 0", "--wait 120"),
        Mistake("trace night --out nowhere/t.json.gz", "mkdir"),
        Mistake("trace night --out .", "--out trace.json.gz"),
        # It is over, and nobody asked while it went on.
        Mistake("trace night", "while it goes on"),
        Mistake("trace --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "save": (
        Mistake("save nigt", "yoked runs", ("yoked runs",)),
        Mistake("save --wait 0", "--wait 120"),
        Mistake("save --wait nan", "--wait 120"),
        Mistake("save --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "stop": (
        Mistake("stop nigt", "did you mean night?", ("yoked stop night",)),
        meant("stop night --jsn", "stop night --json"),
        Mistake("stop --fleet none.toml", "yoked init HOST... --fleet none.toml"),
    ),
    "fetch": (
        Mistake("fetch nigt", "yoked runs", ("yoked runs",)),
        Mistake("fetch night --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("fetch night", "yoked sample night", ("yoked sample night --max-tokens 1",)),
        # It is a training.
        Mistake("fetch night --outputs out/", "yoked runs", ("yoked runs",)),
    ),
    "report": (
        Mistake("report nigt", "did you mean night?", ("yoked report night",)),
        Mistake("report night --against nigt", "did you mean night?", ("yoked report night",)),
        Mistake(
            "report night --runs-dir elsewhere",
            "--runs-dir",
            ("yoked report night --runs-dir runs",),
        ),
        Mistake("report night --out nowhere/x.html", "mkdir", ("yoked report night",)),
        Mistake(
            "report night --out .",
            "--out report.html",
            ("yoked report night --out report.html",),
        ),
        meant("report night --aganst night", "report night --against night"),
    ),
    "plot": (
        Mistake("plot nigt", "did you mean night?", ("yoked plot night",)),
        Mistake(
            "plot night --runs-dir elsewhere", "--runs-dir", ("yoked plot night --runs-dir runs",)
        ),
        meant("plot night --jsn", "plot night --json"),
    ),
    "sample": (
        Mistake("sample nigt", "did you mean night?", ("yoked sample night --max-tokens 5",)),
        Mistake("sample --max-tokens 0", "give 1 or more", ("yoked sample --max-tokens 1",)),
        Mistake(
            "sample --temperature -1",
            "give 0 or more",
            ("yoked sample --temperature 0 --max-tokens 1",),
        ),
    ),
    "chat": (
        Mistake("chat nigt", "did you mean night?", ("yoked chat night --max-tokens 1",)),
        Mistake("chat night --max-tokens 0", "give 1 or more"),
        Mistake(
            "chat night --checkpoint bst",
            "--checkpoint best",
            ("yoked chat night --checkpoint latest --max-tokens 1",),
        ),
    ),
    "export": (
        Mistake("export night", "yoked export --help", ("yoked export --help",)),
        meant("export night --to safetensor", "export night --to safetensors"),
        Mistake(
            "export night --to safetensors",
            "--force",
            ("yoked export night --to safetensors --force",),
        ),
        Mistake("export night --to nanochat --ranks 0", "give 1 or more"),
        Mistake("export night --to safetensors --ranks 2", "leave --ranks out"),
    ),
    "clean": (
        meant("clean --jsn", "clean --json"),
        Mistake("clean --fleet none.toml", "yoked init HOST... --fleet none.toml"),
        Mistake("clean nigt", "", ("yoked clean night",)),
    ),
    "lab": (
        Mistake("lab up two-host-1gbe", "two-hosts-1gbe"),
        Mistake(
            "lab exec gamma --lab {lab} -- true",
            "alpha, beta",
            ("yoked lab exec alpha --lab {lab} -- true",),
        ),
        Mistake(
            "lab fault firewal beta --lab {lab}",
            "firewall",
            ("yoked lab fault firewall beta --lab {lab}", "yoked lab heal --lab {lab}"),
        ),
    ),
}
