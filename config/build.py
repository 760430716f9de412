"""Which build of Trunkline this is: the version of the package, and the commit it was made from."""

from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Final

VERSION: Final = version("trunkline")
_DIGITS: Final = 10


@cache
def commit() -> str:
    """The first 10 digits of the commit; empty where neither the package nor a clone tells it.

    A wheel has it in `config/commit.txt` (hatch_build.py). In a clone it is the commit that is checked out.
    """
    packaged = files("config").joinpath("commit.txt")
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8").strip()
    try:
        return commit_of_clone(Path(__file__).parent.parent)[:_DIGITS]
    except OSError:
        return ""


def commit_of_clone(root: Path) -> str:
    """The commit that is checked out (gitrepository-layout(5)). Raises OSError: this is no clone."""
    git = root / ".git"
    if git.is_file():  # of a worktree: "gitdir: …"
        git = root / git.read_text(encoding="utf-8").partition(": ")[2].strip()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return head
    name, common = head.removeprefix("ref: "), git
    if (git / "commondir").exists():
        common = git / (git / "commondir").read_text(encoding="utf-8").strip()
    if (common / name).exists():
        return (common / name).read_text(encoding="utf-8").strip()
    packed = (line.split() for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines())
    return next((line[0] for line in packed if line[1:] == [name]), "")
