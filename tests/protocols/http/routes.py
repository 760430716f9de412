"""Applications of tests share their routes: nearly every test builds one, with the same 300 routes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from quart_trio import QuartTrio
from werkzeug.routing import Map

_Route = tuple[tuple[str, str], Mapping[str, Any]]

#: The maps that were made, with the routes in them. There are about ten.
_MAPS: list[tuple[list[_Route], Map]] = []


class SharingApp(QuartTrio):
    """An application of a test or of a stand-in. It collects its routes.

    The first application with the same ones makes their map, and the others take it.
    """

    _map: Map

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._waiting: list[_Route] = []
        super().__init__(*arguments, **options)

    @property
    def url_map(self) -> Map:
        if self._waiting:
            routes, self._waiting = self._waiting, []
            self._map = next((map_ for known, map_ in _MAPS if known == routes), None) or self._made(routes)
        return self._map

    @url_map.setter
    def url_map(self, value: Map) -> None:
        self._map = value

    def _made(self, routes: list[_Route]) -> Map:
        for (rule, endpoint), options in routes:
            super().add_url_rule(rule, endpoint, self.view_functions[endpoint], **options)
        _MAPS.append((routes, self._map))
        return self._map

    def add_url_rule(
        self,
        rule: str,
        endpoint: str | None = None,
        view_func: Any = None,
        provide_automatic_options: bool | None = None,
        **options: Any,
    ) -> None:
        endpoint = endpoint or view_func.__name__
        options["provide_automatic_options"] = provide_automatic_options
        self._waiting.append(((rule, endpoint), options))
        self.view_functions[endpoint] = view_func


@contextmanager
def shared_routes() -> Iterator[None]:
    """Making the map takes a good part of the time of a test that asks one call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protocols.http.application.QuartTrio", SharingApp)
        yield
