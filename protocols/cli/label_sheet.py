"""A sheet of labels with QR codes, as SVG: three columns of eight on each page of A4 (reference 27.10)."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import segno

from protocols.control.lines import ImportedLine

_WIDTH, _HEIGHT = 210.0, 297.0  # mm, as all lengths
_COLUMNS: Final = 3
_ROWS: Final = 8
_CODE: Final = 28.0
_MARGIN: Final = 6.0
_NAME_CHARACTERS: Final = 24


def label_sheet(devices: Sequence[ImportedLine]) -> str:
    """Each label has the link as a QR code, the device's name, its id, and the code for people who type it."""
    pages = max(1, -(-len(devices) // (_COLUMNS * _ROWS)))
    labels = "".join(_label(one, *_place(number)) for number, one in enumerate(devices))
    height = _HEIGHT * pages
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:g}mm" height="{height:g}mm"'
        f' viewBox="0 0 {_WIDTH:g} {height:g}" font-family="sans-serif" font-size="3">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{labels}</svg>\n'
    )


def _place(number: int) -> tuple[float, float]:
    page, at = divmod(number, _COLUMNS * _ROWS)
    row, column = divmod(at, _COLUMNS)
    return column * _WIDTH / _COLUMNS, page * _HEIGHT + row * _HEIGHT / _ROWS


def _label(device: ImportedLine, left: float, top: float) -> str:
    matrix = segno.make(device.link, error="m", micro=False).matrix
    scale = _CODE / len(matrix)
    name = device.name if len(device.name) <= _NAME_CHARACTERS else f"{device.name[: _NAME_CHARACTERS - 1]}…"
    code = "-".join(device.code[at : at + 4] for at in range(0, len(device.code), 4))
    texts = (name, device.type, device.id[:16], device.id[16:], code[:10], code[10:])
    lines = "".join(
        f'<text x="{_MARGIN + _CODE + 2:g}" y="{_MARGIN + 3 + 4 * at:g}">{escape(text)}</text>'
        for at, text in enumerate(texts)
    )
    return (
        f'<g transform="translate({left:g} {top:g})">'
        f'<path transform="translate({_MARGIN:g} {_MARGIN:g}) scale({scale:.4f})" d="{"".join(_runs(matrix))}"/>'
        f"{lines}</g>\n"
    )


def _runs(matrix: Sequence[Sequence[int]]) -> Iterator[str]:
    """The dark modules of each row, neighbours in one piece."""
    for y, row in enumerate(matrix):
        x = 0
        while x < len(row):
            end = x
            while end < len(row) and row[end]:
                end += 1
            if end > x:
                yield f"M{x} {y}h{end - x}v1h-{end - x}z"
            x = end + 1
