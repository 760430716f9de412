"""Schemathesis as a program of its own, which also writes how often each operation was answered with which status.

It searches seldom for garbage, of which it has little, and writes no report with every request and answer: both take
processor time. The first argument is the file for the statuses.
"""

import gc
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.cli import schemathesis as command

gc.set_threshold(50_000, 20, 100)

_statuses: defaultdict[str, Counter[int]] = defaultdict(Counter)


@schemathesis.hook
def after_call(
    _context: schemathesis.HookContext, case: schemathesis.Case[Any], response: schemathesis.Response
) -> None:
    _statuses[f"{case.method} {case.operation.path}"][response.status_code] += 1


if __name__ == "__main__":
    _, file, *sys.argv[1:] = sys.argv
    try:
        command()
    finally:
        Path(file).write_text(json.dumps(_statuses), encoding="utf-8")
