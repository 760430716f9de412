"""The forms of the text that Prometheus scrapes, by the Accept header."""

from collections.abc import Callable
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

#: The versions of the forms whose words the encoders write.
_KNOWN: Final = frozenset({"0.0.1", "0.0.4", "1.0.0"})


def exposition_form(accepted: str) -> tuple[Callable[[Any], bytes], str]:
    """The encoder of a registry, and the type of the content. A form with an unknown version is not looked at: the
    encoders compare versions as numbers, and repeat them in the type of the content."""
    encode, content_type = choose_encoder(",".join(part for part in accepted.split(",") if _is_known(part)))
    return encode, content_type


def _is_known(part: str) -> bool:
    versions = [
        value for name, _, value in (one.partition("=") for one in part.split(";")) if name.strip() == "version"
    ]
    return all(one.strip() in _KNOWN for one in versions)
