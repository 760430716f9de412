"""The templates of the pages, read once at the start: an upgrade may replace their files under a running daemon."""

from importlib.resources import files

import jinja2

from protocols.http.texts import language, plural, rich, said


def templates_of(package: str) -> jinja2.Environment:
    """The templates in the folder `templates` of a package. Text is escaped, and an unknown name is an error.

    They say texts in the language of the request: `_("Devices")`, `rich("<b>{name}</b>", name=…)`, `plural(one, other,
    count=…)`; `language()` is its tag.
    """
    folder = files(package).joinpath("templates")
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".html")}
    templates = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {"_": said, "rich": rich, "plural": plural, "language": language}
    return templates
