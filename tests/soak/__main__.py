"""One daemon for an hour, with everything at once: does anything grow, and is each line of its log explained?

    python -m tests.soak [--seconds 3600] [--pause 0.1]      (make soak SECONDS=3600)

ENGINE=postgresql has the store in PostgreSQL, whose server it starts. tests/soak/README.md says how to read what it
prints.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.postgresql import ENGINE, end_run
from tests.soak.running import Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two messages of each device")
    parser.add_argument(
        "--often", type=float, default=10.0, help="seconds between two reloads divided by three, and so on"
    )
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="soak.") as folder:
            soak = Soak(Path(folder), pause=options.pause, often=options.often, every=options.every)
            soak.run(options.seconds)
            sys.stdout.write("\n".join((f"engine: {ENGINE}", *soak.report())) + "\n")
            return 1 if soak.problems() else 0
    finally:
        end_run()


if __name__ == "__main__":
    sys.exit(main())
