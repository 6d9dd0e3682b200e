"""What a program asks of its host is read in its sources: what it uses, and does not make."""

from __future__ import annotations

import pytest

from yoked.doctor.wants import asks, to_hosts

HEAD = "import os, sys\nfrom pathlib import Path\n"


def kinds(source: str) -> dict[str, list[str]]:
    return {kind: list(names) for kind, names in asks({"train.py": HEAD + source}).items()}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("os.environ['ROWS']", {"variables": ["ROWS"]}),
        ("os.getenv('ROWS', 'x')", {"settings": ["ROWS"]}),
        ("GIT = subprocess.run(['git', '--version'])", {"programs": ["git"]}),
        ("os.system('ffmpeg -i a.mp4')", {"programs": ["ffmpeg"]}),
        ("ctypes.CDLL('libsndfile.so.1')", {"libraries": ["libsndfile.so.1"]}),
        ("s.bind(('', 8080))", {"ports": ["8080"]}),
        ("start_http_server(9100)", {"ports": ["9100"]}),
        ("uvicorn.run(app, port=80)", {"ports": ["80"]}),
        ("requests.get('http://files:8000/x')", {"hosts": ["files"]}),
        ("socket.create_connection(('files', 9))", {"hosts": ["files"]}),
        ("AutoModel.from_pretrained('ada/net')", {"hub": ["ada/net"]}),
        ("nltk.data.find('tokenizers/punkt')", {"nltk": ["tokenizers/punkt"]}),
        ("open(os.path.expanduser('~/rows') + '/a.json')", {"reads": ["~/rows/a.json"]}),
        ("(Path.home() / 'rows' / 'a.json').read_text()", {"reads": ["~/rows/a.json"]}),
        ("ROWS = '/rows'\nos.listdir(ROWS)", {"reads": ["/rows"]}),
        ("ROWS = Path('/rows')\nopen(ROWS / f'{n}.txt')", {"reads_below": ["/rows"]}),
        ("open(f'/rows/part-{n}.txt')", {"reads_below": ["/rows"]}),
        ("torch.load('/nets/a.pt')", {"reads": ["/nets/a.pt"]}),
        ("open('/tmp/rows.json', 'w')", {"writes": ["/tmp/rows.json"]}),
        ("torch.save(net, '/nets/a.pt')", {"writes": ["/nets/a.pt"]}),
        ("open('/tmp/lock', 'x')", {"creates": ["/tmp/lock"]}),
        ("SharedMemory('rows', create=True, size=9)", {"creates": ["/dev/shm/rows"]}),
        ("open('../rows/a.txt')", {"beyond": ["../rows/a.txt"]}),
        ("HERE = Path(__file__).resolve().parent\nopen(HERE.parent / 'a')", {"beyond": ["../a"]}),
        ("open('out/a.txt', 'w')", {"fills": ["out"]}),
        ("open(os.path.join(os.path.dirname(__file__), 'out', f'{n}'), 'w')", {"fills": ["out"]}),
        ("load_dotenv()", {"above": [".env"]}),
        ("parser.add_argument('--data', default='/rows')", {"reads": ["/rows"]}),
        ("assert names.sort() is None", {"asserts": ["names.sort"]}),
        ("def put(a):\n    a.append(1)\n    return a\nassert put(a)", {"asserts": ["put"]}),
        (
            "def names(f):\n    found = os.listdir(f)\n    return list(set(found))",
            {"shuffled": ["set(found)"]},
        ),
        ("for row in rows:\n    breakpoint()", {"stops": ["breakpoint"]}),
        (
            "if rank == 0:\n    open('rows.txt', 'w').write(text)\nrows = open('rows.txt').read()",
            {"by_one": ["rows.txt"]},
        ),
        (
            "L = os.path.expanduser('~/last.pt')\nif exists(L):\n    load(L)\ntorch.save(net, L)",
            {"resumes": ["~/last.pt"], "writes": ["~/last.pt"]},
        ),
        ("os.environ['MASTER_ADDR'] = 'localhost'", {"overwrites": ["MASTER_ADDR"]}),
        (
            "local = int(os.environ['LOCAL_RANK'])\nmine = names[local::world]",
            {"dealt": ["names[local::world]"]},
        ),
        (
            "while f:\n    open(os.path.join(f, '.env'))\n    f = os.path.dirname(f)",
            {"above": [".env"]},
        ),
    ],
)
def test_what_is_used_is_asked_for(source: str, found: dict[str, list[str]]) -> None:
    assert kinds(source) == found


@pytest.mark.parametrize(
    "source",
    [
        '"""It reads /rows/a.txt, by open("/rows/a.txt")."""',
        "print('see /rows/a.txt')",
        "os.environ['ROWS'] = '1'\nos.environ['ROWS']",
        "os.environ['RANK']",
        "os.environ['MASTER_PORT'] = port",
        "if local_rank == 0:\n    open('a.txt', 'w').write(text)\nrows = open('a.txt').read()",
        "if rank == 0:\n    open('log.txt', 'w').write(text)\n    open('log.txt').read()",
        "if rank == 0:\n    torch.save(n, 'a.pt')\nif exists('a.pt'):\n    torch.load('a.pt')",
        "local = int(os.environ['LOCAL_RANK'])\nmine = names[rank::world]\ndevices[local]",
        "os.environ.setdefault('MASTER_ADDR', 'localhost')",
        "if 'RANK' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'",
        "os.makedirs('/rows')\nopen('/rows/a.json', 'w')\nopen('/rows/a.json')",
        "os.makedirs('out', exist_ok=True)\nopen('out/a.txt', 'w')",
        "(Path(__file__).parent / 'out').mkdir()\nopen(Path(__file__).parent / 'out' / 'a', 'w')",
        "try:\n    subprocess.run(['nvidia-smi'])\nexcept OSError:\n    pass",
        "if shutil.which('git'):\n    subprocess.run(['git'])",
        "subprocess.run([sys.executable, 'x.py'])",
        "subprocess.run(['./build.sh'])",
        "def read(path):\n    return open(path)\npath = unknown",
        "socket.create_connection(('127.0.0.1', 9))",
        "open('rows.txt')",
        "parser.add_argument('--out-dir', default='/out')",
        "assert len(names) > 0 and all(names)",
        "def names(f):\n    return sorted(list(set(os.listdir(f))))",
        "def words(text):\n    return list(set(text))",
        "os.path.join('/rows', 'a')",
        "def broken(",
    ],
)
def test_what_is_made_guarded_or_only_named_is_not_asked_for(source: str) -> None:
    found = kinds(source)
    found.pop("rewrites", None)
    found.pop("settings", None)

    assert found == {}


def test_a_program_that_asks_whether_a_variable_is_set_can_do_without() -> None:
    found = kinds("if 'ROWS' in os.environ:\n    rows = os.environ['ROWS']")

    assert found == {"settings": ["ROWS"]}


def test_the_first_place_is_told() -> None:
    found = asks({"a.py": "x = 1\nopen('/rows')\nopen('/rows')\n", "b.py": "open('/rows')"})

    assert found["reads"] == {"/rows": "a.py:2"}


def test_hosts_are_not_asked_for_what_is_each_ones_own() -> None:
    found = asks({"a.py": "open('/proc/cpuinfo')\nopen('/rows')"})

    assert to_hosts(found) == {"files": ["/rows"]}
