"""The style sheets of all pages."""

import re
from pathlib import Path

import protocols.http

STATIC = sorted(Path(protocols.http.__file__).parent.glob("*/static/*"))


def test_in_the_dark_colors_alone_differ() -> None:
    """Tests with axe look at a page in the light or in the dark."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in STATIC}
    asking = {name: text for name, text in texts.items() if "color-scheme:" in text}
    assert asking.keys() == {"style.css", "chart.js"}  # the chart is one picture, which is redrawn
    dark = re.findall(r"@media ([^{]*color-scheme[^{]*)\{\s*:root \{([^{}]*)\}\s*\}", asking["style.css"])
    assert len(dark) == asking["style.css"].count("prefers-color-scheme") == 1
    assert all(re.fullmatch(r"\s*(--[a-z-]+: [^;{}]+)?", one) for one in dark[0][1].split(";"))
