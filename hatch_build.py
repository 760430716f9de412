"""Writes the commit into the wheel, where `config/build.py` reads it: two builds of one version are told apart.

It comes from the clone, else from the environment variable TRUNKLINE_COMMIT, for builds without one.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a clone tells it itself
            return
        if commit := os.environ.get("TRUNKLINE_COMMIT") or self._commit():
            file = Path(tempfile.mkdtemp()) / "commit.txt"
            file.write_text(f"{commit[:10]}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = "config/commit.txt"

    def _commit(self) -> str:
        try:
            asked = ["git", "rev-parse", "HEAD"]
            return subprocess.run(asked, cwd=self.root, capture_output=True, text=True, check=True).stdout  # noqa: S603
        except (OSError, subprocess.CalledProcessError):
            return ""
