"""The templates of the pages: an upgrade may replace or remove their files under a running daemon."""

import sys
from pathlib import Path

import jinja2
import pytest

from protocols.http.templates import templates_of

ROOT = Path(__file__).parent.parent.parent.parent


def test_templates_outlive_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "of_version_one" / "templates"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "base.html").write_text("<p>{% block content %}{% endblock %}</p>", encoding="utf-8")
    (folder / "page.html").write_text(
        '{% extends "base.html" %}{% block content %}{{ name }}{% endblock %}', encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    templates = templates_of("of_version_one")
    (folder / "base.html").write_text("of the version after", encoding="utf-8")
    (folder / "page.html").unlink()
    assert templates.get_template("page.html").render(name="<one>") == "<p>&lt;one&gt;</p>"
    sys.modules.pop("of_version_one", None)


def test_no_page_has_templates_that_are_read_later() -> None:
    later = {name for name in dir(jinja2) if name.endswith("Loader")} - {"BaseLoader", "DictLoader"}
    assert later
    for path in (ROOT / "protocols").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in later if name in text], path
        assert "render_template" not in text, path
