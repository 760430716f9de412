"""Switches, and what is switched like one: fans, and lights (reference 16.9)."""

from functools import partial

from broker.found.components import FoundComponent
from broker.found.payloads import either, switched


def switch(one: FoundComponent) -> None:
    on, off = one.text("payload_on", "ON"), one.text("payload_off", "OFF")
    if state := one.topic("state_topic"):
        value = partial(either, one.text("state_on", on), one.text("state_off", off))
        one.read(state, "Boolean", value, one.template("value_template", "state_value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter = {"name": one.name, "valueClass": "Boolean"}
    one.act(f"set_{one.name}", command, partial(switched, on, off, one.name), parameter)


def fan(one: FoundComponent) -> None:
    switch(one)
    if {name for name in one.options if name.startswith(("percentage", "preset", "oscillation", "direction"))}:
        one.notes.append("everything of a fan but on and off")
