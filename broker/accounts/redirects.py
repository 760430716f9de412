"""Adding parameters to a redirect URI. The registered URI stays byte for byte; parameters are only appended."""

from collections.abc import Iterable
from urllib.parse import quote, urlencode


def with_parameters(uri: str, parameters: Iterable[tuple[str, str | None]], *, fragment: bool = False) -> str:
    """`uri` with more parameters in its query or its fragment; parameters that are None are left out.

    Authlib's `add_params_to_uri` is not used: it encodes an existing query again and turns `myapp:///done` into
    `myapp:/done`; both differ from the registered URI.
    """
    # The bytes of `state` stay the same, also when they are not UTF-8.
    given = [(name, value) for name, value in parameters if value is not None]
    text = urlencode(given, safe=",", quote_via=quote, encoding="utf-8", errors="surrogateescape")
    base, hash_, old_fragment = uri.partition("#")
    if fragment:
        return f"{base}#{old_fragment}&{text}" if old_fragment else f"{base}#{text}"
    separator = "?" if "?" not in base else "" if base.endswith(("?", "&")) else "&"
    return f"{base}{separator}{text}{hash_}{old_fragment}"
