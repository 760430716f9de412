"""Makes the REST calls of a tool as the caller of the current request, and puts their answers together.

A call goes through the endpoint of its declaration (`dispatch`): token, object, permission, rate limit, query and body
are checked there, as for a request of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from quart import Response

from broker.assistants.tool_calls import ToolCalls
from broker.clock import Clock
from broker.errors import (
    BOOLEAN_ONLY,
    NUMERIC_ONLY,
    REQUIRED,
    TEXT_ONLY,
    DomainError,
    Finding,
    ValidationFailed,
    invalid,
)
from broker.limits.refusals import RateLimitExceeded
from broker.trace.refusals import Refusals
from protocols.http.answers import REST_ROOT, Answer
from protocols.http.calls import RestCall
from protocols.http.errors import failure_answer, refusal_answer
from protocols.http.fast_path import Endpoint
from protocols.http.mcp.fitting import ROOM, Fitted, at, changes, fit_answer, is_part
from protocols.http.mcp.schemas import Argument, declared_calls
from protocols.http.mcp.tools import GoesOn, Tool, ToolStep
from protocols.http.request_context import RequestContext, current_request, set_current_request
from storage.sql import StoreError

_NO_ARGUMENT: Final = invalid("this tool has no such argument")
_ROUTE: Final = "/mcp"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ToolAnswer(msgspec.Struct, frozen=True):
    content: dict[str, Any]
    is_error: bool = False


class ToolCaller:
    """Calls tools."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], refusals: Refusals, clock: Clock, tool_calls: ToolCalls
    ) -> None:
        """`endpoints`: those of the REST calls, by their names in the application."""
        self._endpoints = endpoints
        self._refusals = refusals
        self._clock = clock
        self._tool_calls = tool_calls

    async def call(self, tool: Tool, given: Mapping[str, Any], count: Callable[[], None]) -> ToolAnswer:
        """Call a tool, and note who did. Whatever is wrong is told in the answer. `count` counts a call that makes none
        of REST, before it is noted: what it raises is raised here."""
        arguments = {name: value for name, value in given.items() if value is not None}
        findings = _findings(tool, arguments)
        if findings:
            count()
            error = ValidationFailed(tuple(findings))
            answer = self._told(refusal_answer(error, self._refusals, "POST", _ROUTE))
        else:
            arguments = {**tool.defaults, **arguments}
            answer = await (self._composed(tool, arguments) if tool.is_composed else self._single(tool, arguments))
        self._tool_calls.note(
            tool.name,
            arguments,
            is_refused=answer.is_error,
            is_complete=bool(answer.content["isComplete"]),
            is_over_limit=answer.is_error and answer.content["error"].get("code") == RateLimitExceeded.status,
        )
        return answer

    async def _single(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolAnswer:
        (step,) = _steps(tool, arguments)
        answer = await self._make(step, arguments, {})
        if "error" in answer and answer.keys() <= {"error", "data"}:
            return self._told_error(answer)
        fitted = fit_answer(answer, step)
        if fitted.kept is not None and step.goes_on is GoesOn.BY_CURSOR:
            # The cursor of an answer is behind its last entry: ask for as many as fit.
            answer = await self._make(step, {**arguments, "count": fitted.kept}, {})
            if "error" in answer:
                return self._told_error(answer)
            fitted = fit_answer(answer, step)
            if fitted.kept is not None:  # new ones came between
                fitted = Fitted(None)
        if fitted.answer is None:
            return self._left_out(step, arguments)
        if fitted.kept is None and not is_part(answer, step):
            return self._added(fitted.answer, is_complete=True)
        change = changes(arguments, answer, step, fitted)
        go_on = {"call": _shown(step, arguments)} if change is None else {"tool": tool.name, "change": change}
        return self._added(fitted.answer, is_complete=False, goOn=go_on)

    async def _composed(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolAnswer:
        """The answers of several calls, each under its name. When the first is refused, nothing else is asked."""
        answers: dict[str, Any] = {}
        refused: dict[str, Any] = {}
        left_out: list[str] = []
        is_complete, room = True, ROOM
        for step in _steps(tool, arguments):
            answer = await self._make(step, arguments, answers)
            if "error" in answer:
                if not answers:
                    return self._told_error(answer)
                refused[step.member] = answer["error"]
                continue
            fitted = fit_answer(answer, step, room)
            is_complete = is_complete and fitted.kept is None and fitted.answer is not None
            if fitted.answer is None:
                left_out.append(step.member)
            else:
                answers[step.member] = fitted.answer
                room -= len(_encode(fitted.answer))
        more: dict[str, Any] = ({"refused": refused} if refused else {}) | ({"leftOut": left_out} if left_out else {})
        if not is_complete:
            more["goOn"] = {"call": f"GET {REST_ROOT}/devices/{quote(str(arguments['did']), safe='')}"}
        return self._added({**answers, **more}, is_complete=is_complete)

    async def _make(self, step: ToolStep, arguments: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one REST call, which is an error with the member `error`."""
        calls = declared_calls()
        call = calls.call(step)
        values = {
            name: arguments[argument]
            for name, _, _ in calls.parameters(step)
            if (argument := step.renamed.get(name, name)) in arguments and (step.only is None or name in step.only)
        }
        values |= {**step.fixed, **{name: at(before, path) for name, path in step.taken.items()}}
        names = {name: str(values.pop(name, "")) for name in call.names}
        query = body = b""
        if call.queries:
            query = urlencode({name: _text(value) for name, value in values.items()}).encode()
        elif call.body is not None:
            body = _encode(values)
        answer = await self._reply(call, names, query, body)
        decoded: dict[str, Any] = _decode(answer.body)
        return decoded

    async def _reply(self, call: RestCall, names: Mapping[str, str], query: bytes, body: bytes) -> Answer:
        asked = current_request()
        request = RequestContext(
            call.method, asked.address, asked.authorization, query, asked.certificate, body, began=asked.began
        )
        set_current_request(request)
        try:
            answer = await self._endpoints[f"rest.{call}"].reply(names)
            if isinstance(answer, Response):
                raise TypeError(f"{call} is no call of a tool")
        except Exception as error:  # noqa: BLE001 - as the fast path: a bug is an answer of this call
            answer = self._refused(call, error)
        finally:
            set_current_request(asked)
            asked.standing, asked.channel, asked.charged = request.standing, request.channel, request.charged
        return answer

    def _refused(self, call: RestCall, error: Exception) -> Answer:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        route = f"{REST_ROOT}{call.path}"
        if isinstance(error, DomainError | StoreError):
            return refusal_answer(error, self._refusals, call.method, route)
        return failure_answer(error, call.method, route)

    def _told(self, answer: Answer) -> ToolAnswer:
        return self._told_error(_decode(answer.body))

    def _told_error(self, answer: Mapping[str, Any]) -> ToolAnswer:
        return ToolAnswer({"error": answer["error"], "isComplete": True, "now": self._clock.now_ms()}, is_error=True)

    def _left_out(self, step: ToolStep, arguments: Mapping[str, Any]) -> ToolAnswer:
        return self._added({"leftOut": ["data"]}, is_complete=False, goOn={"call": _shown(step, arguments)})

    def _added(self, answer: Mapping[str, Any], *, is_complete: bool, **more: Any) -> ToolAnswer:
        return ToolAnswer({**answer, "isComplete": is_complete, "now": self._clock.now_ms(), **more})


def _steps(tool: Tool, arguments: Mapping[str, Any]) -> list[ToolStep]:
    """The steps that are taken with these arguments."""
    return [
        step
        for step in tool.steps
        if (not step.needs or step.needs in arguments) and not (step.without and step.without in arguments)
    ]


def _findings(tool: Tool, arguments: Mapping[str, Any]) -> list[Finding]:
    """The wrong arguments, before any call is made. The calls check the rest."""
    known = declared_calls().arguments(tool)
    findings = [Finding(name[:64], (_NO_ARGUMENT,)) for name in arguments if name not in known]
    for name, argument in known.items():
        if name not in arguments:
            if argument.is_required:
                findings.append(Finding(name, (REQUIRED,)))
        elif (wrong := _wrong(arguments[name], argument)) is not None:
            findings.append(Finding(name, (wrong,)))
    if tool.one_of and sum(name in arguments for name in tool.one_of) != 1:
        findings.append(Finding(tool.one_of[0], (invalid(f"exactly one of {', '.join(tool.one_of)} is given"),)))
    return findings


def _wrong(value: Any, argument: Argument) -> str | None:
    match argument.kind:
        case "string":
            return None if isinstance(value, str) and value else TEXT_ONLY
        case "boolean":
            return None if isinstance(value, bool) else BOOLEAN_ONLY
        case "integer":
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return None if is_whole and not isinstance(value, bool) else NUMERIC_ONLY
        case "object":
            return None if isinstance(value, dict) else invalid("must be an object")
    return None


def _text(value: Any) -> str:
    """A value in a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) else str(value)


def _shown(step: ToolStep, arguments: Mapping[str, Any]) -> str:
    """The REST call for a person: its path with the names in it."""
    call = declared_calls().call(step)
    path = call.path
    for name in call.names:
        path = path.replace(f"{{{name}}}", quote(str(arguments.get(name, name)), safe=""))
    return f"{call.method} {REST_ROOT}{path}"
