"""Applications of tests share their routes: nearly every test builds one, with the same 300 routes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from quart_trio import QuartTrio
from werkzeug.routing import Map

#: The maps that were made, by the routes in them.
_MAPS: dict[tuple[str, ...], Map] = {}


class SharingApp(QuartTrio):
    """An application of a test or of a stand-in. It collects its routes.

    The first application with the same ones makes their map, and the others take it.
    """

    _map: Map

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._waiting: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        super().__init__(*arguments, **options)

    @property
    def url_map(self) -> Map:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            routes = tuple(f"{arguments[:2]} {options}" for arguments, options in waiting)
            if routes not in _MAPS:
                for arguments, options in waiting:
                    super().add_url_rule(*arguments, **options)
                _MAPS[routes] = self._map
            self._map = _MAPS[routes]
        return self._map

    @url_map.setter
    def url_map(self, value: Map) -> None:
        self._map = value

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Any = None, *arguments: Any, **options: Any
    ) -> None:
        endpoint = endpoint or view_func.__name__
        self._waiting.append(((rule, endpoint, view_func, *arguments), options))
        self.view_functions[endpoint] = view_func


@contextmanager
def shared_routes() -> Iterator[None]:
    """Making the map takes a good part of the time of a test that asks one call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protocols.http.application.QuartTrio", SharingApp)
        yield
