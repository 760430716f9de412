"""Builds what notes the calls of assistants."""

from broker.assistants.tool_calls import ToolCalls
from broker.core import Core


async def open_assistants(core: Core) -> ToolCalls:
    calls = ToolCalls(core.audit, core.clock)
    core.life.observe("tools of assistants", calls.statistics)
    return calls
