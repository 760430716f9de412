"""Notes the calls of tools: by whom and about what in the audit log, and how many."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from broker.clock import Clock
from broker.ids import is_id
from broker.trace.audit import AuditEvent, AuditLog, entry_of

#: The argument that names what a call is about, and the word for it in the audit log.
_OBJECTS: Final = {
    "did": "device",
    "ddid": "device",
    "sdid": "device",
    "ruleId": "rule",
    "sceneId": "scene",
    "tid": "task",
    "uid": "user",
}


class ToolStatistics(msgspec.Struct, frozen=True):
    calls: int
    refused: int
    parts: int  # answers that were a part


class ToolCalls:
    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._calls = self._refused = self._parts = 0

    def note(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        is_refused: bool,
        is_complete: bool,
        is_over_limit: bool = False,
    ) -> None:
        """Note a call of the current task's caller. `arguments` are as the assistant gave them: only ids are noted.

        `is_over_limit`: a limit has refused it. It is no entry, or whoever goes on asking would fill the log.
        """
        self._calls += 1
        self._refused += is_refused
        self._parts += not is_complete
        if is_over_limit:
            return
        ids = ((word, arguments.get(name)) for name, word in _OBJECTS.items())
        named = next((f"{word} {id_}" for word, id_ in ids if _is_id(id_)), "")
        many = arguments.get("sdids")
        devices = [one for one in (many.split(",") if isinstance(many, str) else ()) if is_id(one)]
        if not named and len(devices) == 1:
            named = f"device {devices[0]}"
        self._audit.put(
            entry_of(
                AuditEvent.TOOL_CALLED,
                named,
                now_ms=self._clock.now_ms(),
                outcome="refused" if is_refused else "done",
                tool=tool,
                devices=devices if len(devices) > 1 else None,
            )
        )

    def statistics(self) -> ToolStatistics:
        return ToolStatistics(self._calls, self._refused, self._parts)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and is_id(value)
