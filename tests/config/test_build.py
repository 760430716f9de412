"""The commit of a clone, of a worktree, and of a clone whose references are packed."""

from pathlib import Path

import pytest

from config.build import commit_of_clone

COMMIT = "0123456789" * 4


@pytest.fixture
def git(tmp_path: Path) -> Path:
    folder = tmp_path / ".git"
    (folder / "refs/heads").mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    return folder


def test_the_branch_that_is_checked_out(git: Path) -> None:
    (git / "refs/heads/main").write_text(f"{COMMIT}\n", encoding="utf-8")
    assert commit_of_clone(git.parent) == COMMIT


def test_a_commit_that_is_checked_out(git: Path) -> None:
    (git / "HEAD").write_text(f"{COMMIT}\n", encoding="utf-8")
    assert commit_of_clone(git.parent) == COMMIT


def test_packed_references(git: Path) -> None:
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n^{'f' * 40}\n", encoding="utf-8")
    assert commit_of_clone(git.parent) == COMMIT


def test_a_worktree(git: Path, tmp_path: Path) -> None:
    (git / "refs/heads/room").write_text(f"{COMMIT}\n", encoding="utf-8")
    of_worktree, worktree = git / "worktrees/room", tmp_path / "room"
    of_worktree.mkdir(parents=True)
    worktree.mkdir()
    (of_worktree / "HEAD").write_text("ref: refs/heads/room\n", encoding="utf-8")
    (of_worktree / "commondir").write_text("../..\n", encoding="utf-8")
    (worktree / ".git").write_text(f"gitdir: {of_worktree}\n", encoding="utf-8")
    assert commit_of_clone(worktree) == COMMIT


def test_no_clone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="HEAD"):
        commit_of_clone(tmp_path)
