"""Every text that pages say: those of the templates, the scripts and the programs, and literals that are not wrapped.

`python -m tests.texts` prints the keys that protocols/http/texts.json lacks, and those that nothing uses; `--sort` puts
the file in order.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import nodes

from protocols.http.console.pages import AREAS, DASHBOARDS

ROOT: Final = Path(__file__).parent.parent
#: Packages with pages that people read in their language; those of /docs are English.
PACKAGES: Final = ("protocols.http.console", "protocols.http.accounts")
#: Programs whose texts pages show.
PROGRAMS: Final = ("protocols/http/accounts", "protocols/http/console", "broker/accounts/consent_words.py")
_FUNCTIONS: Final = {"_", "rich", "plural", "said"}
#: Attributes that are read, shown or spoken.
_SHOWN_ATTRIBUTES: Final = {"aria-label", "placeholder", "title", "alt", "data-label", "aria-description"}
#: Names, codes and units that are the same in every language.
SAME: Final = frozenset({"Trunkline", "· Trunkline", "API", "JSON", "CSV", "XXXX-XXXX", "·"})
_LETTERS: Final = re.compile(r"[A-Za-z]{2,}|^[A-Z]$")


class Text(str):
    """A key, and where it is used."""

    __slots__ = ("place",)
    place: str

    @classmethod
    def at(cls, text: str, place: str) -> "Text":
        made = cls(text)
        made.place = place
        return made


# Templates


def templates() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for file in sorted(files(package).joinpath("templates").iterdir(), key=lambda one: one.name):
            yield f"{package}: {file.name}", file.read_text(encoding="utf-8")


def keys_of_template(name: str, source: str) -> Iterator[Text]:
    environment = jinja2.Environment(autoescape=True)
    for call in environment.parse(source).find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in _FUNCTIONS:
            key = call.args[1 if call.node.name == "plural" else 0]
            if isinstance(key, nodes.Const):
                yield Text.at(key.value, f"{name}:{call.lineno}")


class _Visible(HTMLParser):
    """Texts between elements, and in attributes that people read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found += [line.strip() for line in data.splitlines() if line.strip()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.found += [value for name, value in attrs if name in _SHOWN_ATTRIBUTES and value]


def literals_of_template(source: str) -> list[str]:
    """Visible texts that are in no call of a function that says them, also in expressions of Jinja."""
    found = []
    for node in jinja2.Environment(autoescape=True).parse(source).find_all(nodes.CondExpr):
        found += [
            one.value
            for one in (node.expr1, node.expr2)
            if isinstance(one, nodes.Const) and isinstance(one.value, str) and re.match(r"[A-Z][a-z]+ ?", one.value)
        ]
    visible = _Visible()
    source = re.sub(r"\{% block script %\}.*?\{% endblock %\}", "", source)
    visible.feed(re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", source, flags=re.DOTALL))
    visible.close()
    return found + [one for one in visible.found if one not in SAME and _LETTERS.search(one)]


# Scripts

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
#: A comment, a regular expression behind an operator, a string, or a template without its strings.
_TOKEN: Final = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?<=[(,=:\[!&|?;\s])(?P<regex>/(?![/*\s])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*)"
    rf"|(?P<string>{_STRING}|'(?:[^'\\\n]|\\.)*')",
    re.DOTALL,
)
_KEY: Final = re.compile(rf"(?<![\w.$])(?:(?:_|phrase)\(({_STRING})|plural\({_STRING}, ({_STRING}))")
_BEFORE: Final = re.compile(rf"(?<![\w.$])(?:_\(|phrase\(|plural\(|plural\({_STRING}, )$")
#: Looks like a text for people: words with a space, or one word with a capital letter.
_TEXT: Final = re.compile(r"[A-Za-z“][\w’'“”.,:…-]* [\w“({].*|[A-Z][a-z]+[.?!…]?|[a-z,]+ | [a-z]+.*")
#: The same in the literal parts of a template.
_SENTENCE_PART: Final = re.compile(r"[A-Za-z]{2,}[,:]? [a-z]{2,}|^[A-Z][a-z]+ \$|(?<=\}) [a-z]{2,} (?=\$)")
#: Literals that look like texts and are none: of commands, programs, protocols and the API.
NO_TEXTS: Final = frozenset(
    {
        *("Edg", "Edge", "Opera", "Firefox", "Chrome", "Safari", "Android", "Windows", "Mac OS X", "Linux"),
        *("Boolean", "Double", "Float", "Integer", "Long", "String", "True", "False", "Zephyr"),
        *("Authorization", "Received", "Success", "Failure", "Processing", "Failed", "Escape", "Enter", "Home", "End"),
        *("Tab", "Space", "Delete", "Application"),
        *("In the room", "no connection", "device management", "topic devices", "signed in"),
        *("small quiet", "danger small", "quiet small", "notice good", "button", "Trunkline"),
        *("does not contain", "is in message", "is not in message", "wanted ", ", "),
    }
)
_COMMAND: Final = re.compile(
    r"(trunkline|provision|audit|backup|plans|payments|type|user|device|receive|curl|coap\S*|mosquitto_\w+) .*|-\w .*"
    r"|(quiet|danger|plain|toast|notice|badge|row|empty|secret|line|box|tag|size|column|wide|small)( [\w-]+)+"
    r"|popup,.*|.*Content-Type: .*|Bearer .*|<meta .*| ?[·{] .*|.*Authorization: .*"
    r"|[MZ] .*|\d+ .*|\[.*|[.#][\w-]+.*|[\w-]+ [\w-]+\[.*"
)
#: Programs for people's devices, with comments of their own; and the texts themselves.
_WITHOUT_TEXTS: Final = frozenset({"programs.js", "texts.js"})


def scripts() -> Iterator[tuple[str, str]]:
    for file in sorted(files("protocols.http.console").joinpath("static").iterdir(), key=lambda one: one.name):
        if file.name.endswith(".js"):
            yield file.name, file.read_text(encoding="utf-8")


def keys_of_script(name: str, source: str) -> Iterator[Text]:
    code = re.sub(r"^\s*//.*", "", source, flags=re.MULTILINE)
    for found in _KEY.finditer(code):
        yield Text.at(json.loads(found[1] or found[2]), f"{name}:{code.count(chr(10), 0, found.start()) + 1}")


def literals_of_script(name: str, source: str) -> list[str]:
    """Strings of a script that look like texts for people, and are in no call that says them."""
    if name in _WITHOUT_TEXTS:
        return []
    found = []
    for token in _TOKEN.finditer(source):
        literal = token["string"]
        if literal is None or _BEFORE.search(source[max(0, token.start() - 200) : token.start()]):
            continue
        text = literal[1:-1]
        if (
            text in NO_TEXTS
            or text in SAME
            or _COMMAND.fullmatch(text)
            or not _TEXT.fullmatch(text)
            or _is_class(source, token.start())
        ):
            continue
        found.append(f"{name}:{source.count(chr(10), 0, token.start()) + 1}: {text}")
    for number, line in enumerate(source.splitlines(), 1):
        for template in re.findall(r"`((?:[^`\\]|\\.)*)`", re.sub(r"^\s*//.*|\s//\s.*", "", line)):
            plain = re.sub(r"\$\{[^{}]*\}", "${}", template)
            if _SENTENCE_PART.search(plain) and not _COMMAND.fullmatch(plain):
                found.append(f"{name}:{number}: {template}")
    return found


def _is_class(source: str, at: int) -> bool:
    """The literal at this place is a value that nobody reads: of a property, a selector, a comparison, a command."""
    before = source[max(0, at - 60) : at]
    return (
        re.search(
            r"(?:\b(?:class|className|type|id|role|href|for|rel|autocomplete|kind|file|sort|order)\"?[:=] ?"
            r"(?:[^,:{}]*\? )?"
            r"|(?:===|!==) ?|\b(?:import|from) |querySelector(?:All)?\(|closest\(|\$\(|matchMedia\("
            r"|same(?:Command|Client|As)\(|matches\(|addEventListener\(|(?:style|font|cursor) = |[Hh]eader\("
            r"|command\()$",
            before,
        )
        is not None
    )


# Programs


def keys_of_programs() -> Iterator[Text]:
    """Texts in calls of `Words` and `said`, and texts that are handed to a page."""
    for place in PROGRAMS:
        path = ROOT / place
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                for text in _texts_in(node):
                    yield Text.at(text, f"{place}/{file.name}:{node.lineno}")  # type: ignore[attr-defined]


#: A constant of a module or a class with a sentence: pages show it.
_SENTENCE: Final = re.compile(r"[A-Z].* .*[.?!…]", re.DOTALL)


def _texts_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in {"Words", "said", "rich"}:
            yield from _constants(node.args[:1])
        elif name == "plural":
            yield from _constants(node.args[1:2])
        elif name in {"notice", "error_page", "claim_page"}:
            yield from (one for one in _constants(node.args) if " " in one or one.istitle())
        for keyword in node.keywords:
            if keyword.arg == "problem":
                yield from (one for one in _constants([keyword.value]) if one)
            elif keyword.arg in {"next_link", "console"} and isinstance(keyword.value, ast.Tuple):
                yield from _constants(keyword.value.elts[1:])
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        values = list(node.value.values) if isinstance(node.value, ast.Dict) else [node.value]
        yield from (one for one in _constants(values) if _SENTENCE.fullmatch(one))


def _constants(some: list[ast.expr] | list[ast.AST]) -> Iterator[str]:
    for one in some:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


#: Texts of refusals that pages of accounts show; those of the API stay English.
_TEMPLATES: Final = ("broker/accounts", "broker/monetization/payments.py", "broker/devices/labels.py")
_OF_ERRORS: Final = ("EmailTaken", "TooManyAttempts", "LinkOver")
#: Texts that are put together where they are used, and found again by their pattern.
_ALIKE: Final = (
    "A password has {least} to {most} characters.",
    "A name has at most {most} characters.",
    "A name must not contain control characters.",
    "A name must not be blank.",
    "This is one of the {count} most common passwords. Please choose another one.",
    "This is not an e-mail address.",
)


def keys_of_reasons() -> Iterator[Text]:
    """Texts of the refusals, and the headings of what a claim ended."""
    for place in _TEMPLATES:
        path = ROOT / place
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    name = target.id if isinstance(target, ast.Name) else ""
                    if name == "template" or (path.name == "labels.py" and name.isupper()):
                        yield from (
                            Text.at(one, f"{place}:{node.lineno}")
                            for one in _constants([node.value])
                            if " " in one and not one.startswith("{reason") and not one[0].islower()
                        )
    errors = ast.parse((ROOT / "broker/errors.py").read_text(encoding="utf-8"))
    for node in ast.walk(errors):
        if isinstance(node, ast.ClassDef) and node.name in _OF_ERRORS:
            for part in node.body:
                if isinstance(part, ast.Assign):
                    yield from (Text.at(one, f"broker/errors.py:{part.lineno}") for one in _constants([part.value]))
    yield from (Text.at(one, "tests/texts.py") for one in _ALIKE)
    for file in sorted((ROOT / "broker").glob("*/room.py")):
        for kind in re.findall(r'claims\.ends\("([^"]+)"', file.read_text(encoding="utf-8")):
            yield Text.at(kind, f"broker/{file.parent.name}/room.py")


def keys_of_navigation() -> Iterator[Text]:
    for links in AREAS.values():
        yield from (Text.at(text, "console/pages.py") for _, text in links.values())
    yield from (Text.at(page.title, "console/pages.py") for page in DASHBOARDS)


def every_key() -> Iterator[Text]:
    yield from keys_of_navigation()
    for name, source in templates():
        yield from keys_of_template(name, source)
    for name, source in scripts():
        yield from keys_of_script(name, source)
    yield from keys_of_programs()
    yield from keys_of_reasons()


FILE: Final = ROOT / "protocols/http/texts.json"


def file_of(texts: dict[str, Any]) -> str:
    """The file with its texts in order, one line for each translation."""
    return json.dumps(dict(sorted(texts.items())), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    known = json.loads(FILE.read_text(encoding="utf-8"))
    used = {str(text): text.place for text in every_key()}
    for key, place in used.items():
        if key not in known:
            sys.stdout.write(f"missing: {place}: {key}\n")
    for key in known.keys() - used.keys():
        sys.stdout.write(f"unused: {key}\n")
    if "--sort" in sys.argv:
        FILE.write_text(file_of(known), encoding="utf-8")
