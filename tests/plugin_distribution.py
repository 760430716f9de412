"""A distribution with connector plug-ins, as pip would install it."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.connectors.catalog import PLUGIN_GROUP


def install_plugins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, modules: Mapping[str, str], plugins: Mapping[str, str]
) -> None:
    """For as long as the test lasts.

    Args:
        folder: where to; nothing else is in it.
        monkeypatch: undoes it.
        modules: their sources, by name.
        plugins: `module:class` by the name of the plug-in.
    """
    info = folder / "acme_connectors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-connectors\nVersion: 1.0\n")
    lines = [f"{name} = {where}" for name, where in plugins.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PLUGIN_GROUP}]", *lines]))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
