"""Lists of objects in link format (RFC 6690), as devices send them at registration and in answers to Discover."""

import re
from typing import Final

import msgspec

from broker.device_management.sessions import ResourcePath
from protocols.coap.lwm2m.formats.values import UnreadablePayload, parse_path

#: Most links that are read from one list.
MAX_LINKS: Final = 512
_LINK: Final = re.compile(r"\s*<([^<>]{0,200})>((?:;[^,;\"]{0,100}(?:\"[^\"]{0,200}\")?){0,16})\s*(?:,|$)")
_ROOT_TYPE: Final = re.compile(r";\s*rt\s*=\s*\"?[^\";]*oma\.lwm2m")
_INSTANCE_DEPTH: Final = 2

#: Links that every device offers, which say nothing about it (reference 18.2).
_USUAL: Final = frozenset({(3,), (5,), (3, 0), (5, 0)})


class Offer(msgspec.Struct, frozen=True):
    """Objects and object instances that a device lists, and the path in front of them."""

    paths: frozenset[ResourcePath]
    root: tuple[bytes, ...] = ()


def parse_links(text: str) -> list[tuple[str, str]]:
    """The targets of the links and their attributes, as they are written. Raises Unreadable."""
    found: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        link = _LINK.match(text, at)
        if link is None or len(found) >= MAX_LINKS:
            raise UnreadablePayload(f"is not a list of links of at most {MAX_LINKS}")
        found.append((link[1], link[2]))
        at = link.end()
    return found


def parse_offer(payload: bytes) -> Offer:
    """Read the body of a registration. A link that is no path of LWM2M is left out. Raises Unreadable."""
    links = parse_links(_decoded(payload))
    if not links:
        return Offer(_USUAL)
    root = next((target for target, attributes in links if _ROOT_TYPE.search(attributes)), "").strip("/")
    paths: set[ResourcePath] = set()
    for target, _ in links:
        path = _below(root, target)
        if path:
            paths.update((path[:1], path[:_INSTANCE_DEPTH]))
    return Offer(frozenset(paths), tuple(root.encode().split(b"/")) if root else ())


def parse_discovered(payload: bytes, root: tuple[bytes, ...]) -> list[ResourcePath]:
    """The paths in an answer to Discover. Raises Unreadable."""
    prefix = b"/".join(root).decode()
    return [path for target, _ in parse_links(_decoded(payload)) if (path := _below(prefix, target))]


def _below(root: str, target: str) -> ResourcePath:
    """The path of a link below the root; empty when it is not one."""
    plain = target.strip("/")
    if root and (plain == root or plain.startswith(root + "/")):
        plain = plain[len(root) :]
    try:
        return parse_path(plain)
    except UnreadablePayload:
        return ()


def _decoded(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise UnreadablePayload("is a list of links that is not UTF-8") from None
