"""Schemathesis as a program that runs it for each line of its input, and counts how each operation was answered.

It is imported once: each run is a fork. It searches seldom for garbage, of which it has little, and writes no report
with every request and answer: both take processor time. A line is JSON: the arguments of Schemathesis, the file for the
statuses, and the one for what Schemathesis prints. The line of the answer is the exit status.
"""

import gc
import json
import os
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.cli import schemathesis as command
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import CoveragePhaseData

gc.set_threshold(50_000, 20, 100)

#: What a run imports: 870 modules, which would take each fork 1.2 s.
_OF_A_RUN = (
    "rich.live",
    "schemathesis.cli.commands.run.executor",
    "schemathesis.engine.core",
    "schemathesis.engine.run.analysis",
    "schemathesis.engine.run.stateful",
    "schemathesis.engine.run.unit._hypothesis_executor",
    "schemathesis.specs.openapi.schemas",
)

_TEXTS = (ParameterLocation.PATH, ParameterLocation.QUERY)

_wrong_types: set[tuple[str, str, str | None]] = set()
_statuses: defaultdict[str, Counter[int]] = defaultdict(Counter)


@schemathesis.hook
def filter_case(_context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Whether to call: in paths and queries all values are texts, and one that has the wrong type is enough."""
    tried = case.meta and case.meta.phase.data
    if not isinstance(tried, CoveragePhaseData) or tried.parameter_location not in _TEXTS:
        return True
    if not tried.description.endswith("Incorrect type"):
        return True
    one = case.method, case.operation.path, tried.parameter
    is_new = one not in _wrong_types
    _wrong_types.add(one)
    return is_new


@schemathesis.hook
def after_call(
    _context: schemathesis.HookContext, case: schemathesis.Case[Any], response: schemathesis.Response
) -> None:
    _statuses[f"{case.method} {case.operation.path}"][response.status_code] += 1


def _run(arguments: list[str], statuses: str, output: str) -> None:
    with open(output, "wb") as file:  # noqa: PTH123 - a descriptor
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.argv[1:] = arguments
    try:
        command()
    finally:
        Path(statuses).write_text(json.dumps(_statuses), encoding="utf-8")


if __name__ == "__main__":
    for name in _OF_A_RUN:
        import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _run(*json.loads(line))
            sys.exit()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer
