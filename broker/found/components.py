"""One announced component: its options, and the fields, Actions and topics that it becomes (reference 16.9)."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from broker.found.announcements import Announced
from broker.found.templates import Template, TemplateRefusedError, template_of
from broker.topics.space import SERVICE
from broker.topics.tree import is_topic
from config.limits import FOUND_TEXT_CHARACTERS

_WORD: Final = re.compile(r"[^A-Za-z0-9]+")
_NAME_MAX: Final = 48
#: Costs of a value without a template, in parts of one.
_PLAIN_COST: Final = 3
_OWN: Final = ("trunkline/",)


class FieldReading(msgspec.Struct, frozen=True):
    """Makes a field's value of what is published at a topic."""

    topic: str
    field: str
    value: Callable[[str], Any]  # of the text; None: no value
    template: Template | None = None

    @property
    def cost(self) -> int:
        return _PLAIN_COST if self.template is None else self.template.cost


class TopicCommand(msgspec.Struct, frozen=True):
    """Makes what is published at a topic of an Action's parameters; None: they do not fit."""

    topic: str
    payload: Callable[[Mapping[str, Any]], str | None]


class AvailabilityTopic(msgspec.Struct, frozen=True):
    topic: str
    available: str
    not_available: str
    template: Template | None = None


class NotTakenError(Exception):
    """The component is not taken over. The text is the reason."""


def word_of(text: str) -> str:
    """A name of a Manifest that is like this text: `Outdoor temp.` is `outdoor_temp`."""
    word = _WORD.sub("_", text).strip("_")[:_NAME_MAX].strip("_")
    return f"v_{word}" if not word or word[0].isdigit() else word


class FoundComponent:
    """Collects what one component becomes."""

    def __init__(self, component: Announced) -> None:
        self.options = component.options
        self.name = word_of(component.id)
        self.fields: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, dict[str, Any]] = {}
        self.readings: list[FieldReading] = []
        self.settings: dict[str, TopicCommand] = {}
        self.notes: list[str] = []

    # Options

    def text(self, name: str, default: str = "") -> str:
        value = self.options.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return "True" if value else "False"
        if not isinstance(value, str | int | float):
            raise NotTakenError(f"{name} must be a text")
        text = str(value)
        if len(text) > FOUND_TEXT_CHARACTERS:
            raise NotTakenError(f"{name} is too long")
        return text

    def texts(self, name: str) -> list[str]:
        """The texts of a list; none without one."""
        given = self.options.get(name)
        return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []

    def number(self, name: str, default: float) -> float:
        value = self.options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e15:
            raise NotTakenError(f"{name} must be a number")
        return value

    def topic(self, name: str) -> str:
        """The topic of an option; empty without one."""
        topic = self.text(name)
        if not topic:
            return ""
        encoded = topic.encode(errors="replace")
        if not is_topic(encoded):
            raise NotTakenError(f"{name} must be a topic without wildcards, of at most 1,024 bytes and 32 levels")
        if encoded.startswith(SERVICE) or topic.startswith(_OWN):
            raise NotTakenError(f"{name} is a topic of Trunkline itself")
        return topic

    def template(self, *names: str) -> Template | None:
        for name in names:
            if source := self.text(name):
                return template_of(source)
        return None

    # Parts

    def read(
        self,
        topic: str,
        value_class: str,
        value: Callable[[str], Any],
        template: Template | None,
        *,
        name: str = "",
        unit: str = "",
        metadata: Iterable[Mapping[str, Any]] = (),
    ) -> str:
        """Add a field that is read at this topic."""
        name = name or self.name
        field: dict[str, Any] = {"valueClass": value_class, "description": self.text("name")[:200]}
        if unit:
            field["unitSymbol"] = unit
        if metadata:
            field["metaData"] = list(metadata)
        self.fields[name] = field
        self.readings.append(FieldReading(topic, name, value, template))
        return name

    def act(self, name: str, topic: str, payload: Callable[[Mapping[str, Any]], str | None], *parameters: Any) -> None:
        self.actions[name] = {"parameters": list(parameters), "description": self.text("name")[:120]}
        self.settings[name] = TopicCommand(topic, payload)

    def require(self, topic: str, name: str) -> str:
        if not topic:
            raise NotTakenError(f"{name} is missing")
        return topic

    def availability(self) -> Iterable[AvailabilityTopic]:
        """The topics at which the device says whether it is there, without the ones that cannot be read."""
        entries = self.options.get("availability")
        given = entries if isinstance(entries, list) else [entries] if isinstance(entries, dict) else []
        if topic := self.options.get("availability_topic"):
            template = self.options.get("availability_template")
            given = [{**self.options, "topic": topic, "value_template": template}]
        for entry in given[:5]:
            if not isinstance(entry, dict):
                continue
            one = FoundComponent(Announced("", "", "", entry))
            try:
                if topic := one.topic("topic"):
                    yes, no = one.text("payload_available", "online"), one.text("payload_not_available", "offline")
                    yield AvailabilityTopic(topic, yes, no, one.template("value_template"))
            except (NotTakenError, TemplateRefusedError):
                continue
