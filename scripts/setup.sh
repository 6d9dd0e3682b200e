#!/usr/bin/env bash
# Make .venv hold yoked and all that it needs. Quick when nothing has changed.
# With the word `build`: what makes the wheel is enough.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/yoked-setup

# What an installation depends on; another interpreter or a moved checkout breaks it too.
state() {
    echo "$PWD"
    cksum pyproject.toml
    "$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || echo broken
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(state)" ]; then
    exit 0
fi

if [ "${1:-}" = build ] && "$venv/bin/python" -c 'import hatchling' 2>/dev/null; then
    exit 0
fi

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

# PYTHON names an interpreter; otherwise the first that is new enough and can make a venv.
python=""
too_bare=""
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if suits "$candidate"; then
        if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            python=$candidate
            break
        fi
        too_bare=$candidate
    fi
done

if [ -z "$python" ]; then
    if [ -n "$too_bare" ]; then
        echo "$too_bare cannot make a virtual environment: it has no ensurepip." >&2
        version=$("$too_bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "fix: sudo apt install python$version-venv (Debian, Ubuntu)" >&2
    else
        echo "yoked needs Python 3.11 or newer, and ${PYTHON:-none here} is not." >&2
        echo "fix: install it, or name it: make PYTHON=/path/to/python3.11 setup" >&2
    fi
    exit 1
fi

more=", torch and all that tests need: 1.5 GB, or 5 GB where the index has torch for CUDA"
wanted=(--editable '.[train,watch,dev]')
if [ "${1:-}" = build ]; then
    more=""
    wanted=(hatchling)
fi
echo "setting up $venv with $("$python" -V)$more"
rm -f "$stamp"
"$python" -m venv --clear "$venv"
# Most of what is installed is never imported: bytecode for it would take half of the time.
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile "${wanted[@]}"
# Without its stamp, it is made anew as soon as more is needed.
if [ "${1:-}" != build ]; then
    state > "$stamp"
fi
