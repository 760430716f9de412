"""Filters of devices by their properties: `key=value` pairs, separated by commas (reference 15.1)."""

from typing import Final

from broker.errors import ValidationFailed, invalid, too_long
from config.limits import FILTER_MAX_CHARACTERS, FILTER_PAIRS_MAX
from storage.device_management import PropertyMatch

_KINDS: Final = {"systemProperties": "system", "serverProperties": "server", "deviceProperties": "reported"}


def parse_filter(text: str) -> list[PropertyMatch]:
    """The conditions of a filter. Values are taken literally. Raises ValidationFailed for a key without a prefix."""
    if len(text) > FILTER_MAX_CHARACTERS:
        raise ValidationFailed.of("filter", too_long(FILTER_MAX_CHARACTERS))
    matches = []
    for pair in filter(None, map(str.strip, text.split(","))):
        key, equals, value = pair.partition("=")
        prefix, dot, path = key.strip().partition(".")
        kind = _KINDS.get(prefix)
        if kind is None or not equals or not dot or not path:
            raise ValidationFailed.of("filter", invalid("must be pairs such as serverProperties.site=north"))
        matches.append(PropertyMatch(kind, path, value.strip()))
    if len(matches) > FILTER_PAIRS_MAX:
        raise ValidationFailed.of("filter", too_long(FILTER_PAIRS_MAX))
    return matches
