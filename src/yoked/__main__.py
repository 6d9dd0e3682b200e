"""Where the program begins: Ctrl-C has its meaning before much is imported."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> int:
    """Run this process's command line, and return its exit status (yoked.cli.main)."""
    try:
        from yoked.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
