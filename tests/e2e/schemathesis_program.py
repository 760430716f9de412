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
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.cli import schemathesis as command
from schemathesis.config import ProjectConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import CoveragePhaseData
from schemathesis.specs.openapi.schemas import OpenApiSchema

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

#: Of so many wrong types, each member of a body gets one.
_TYPES = 4

_turns: dict[tuple[object, ...], int] = {}
_seen: Counter[tuple[object, ...]] = Counter()
_statuses: defaultdict[str, Counter[int]] = defaultdict(Counter)


@schemathesis.hook
def filter_case(_context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Whether to call: what is wrong is tried once for each operation, whatever stands beside it.

    A member of a body is null, and has one wrong type more, the one whose turn it is (test_strange_values.py has more).
    """
    tried = case.meta and case.meta.phase.data
    if not isinstance(tried, CoveragePhaseData) or not case.meta.generation.mode.is_negative:
        return True
    where, what = tried.parameter_location, tried.description.removeprefix(f"{tried.parameter}: ")
    if what == "Missing `Authorization` at header":
        return False  # the check `ignored_auth` leaves it out, too
    if "Content-Type: " in what and not case.operation.body:
        return False  # nobody reads it
    if where == ParameterLocation.PATH:
        what = ""  # one text that does not match is like another
    wrong = case.method, case.operation.path, where, tried.parameter, what
    turn = 0
    if where == ParameterLocation.BODY and what.endswith("Incorrect type"):
        if "': None" in repr(case.body):
            return True
        turn = _turns.setdefault(wrong, len(_turns)) % _TYPES
    _seen[wrong] += 1
    return _seen[wrong] == turn + 1


@schemathesis.hook
def after_call(
    _context: schemathesis.HookContext, case: schemathesis.Case[Any], response: schemathesis.Response
) -> None:
    _statuses[f"{case.method} {case.operation.path}"][response.status_code] += 1


def _decided_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """A setting of an operation, which is put together from all settings twenty times for each call otherwise."""
    found: dict[tuple[Any, ...], Any] = {}

    def decided(self: object, *, operation: Any = None, phase: str | None = None) -> Any:
        key = id(self), operation and operation.label, phase
        if key not in found:
            found[key] = method(self, operation=operation, **({} if phase is None else {"phase": phase}))
        return found[key]

    return decided


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
    for name in ("phases_for", "generation_for", "checks_config_for"):
        setattr(ProjectConfig, name, _decided_once(getattr(ProjectConfig, name)))
    # They are looked for also where none is to be printed.
    OpenApiSchema.iter_schema_warnings = lambda _: ()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _run(*json.loads(line))
            sys.exit()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer
