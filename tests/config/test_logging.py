"""Structured logs on stderr, in the form and from the level of the settings."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from config.logging import configure_logging


@pytest.fixture(autouse=True)
def former_configuration() -> Iterator[None]:
    former = structlog.get_config()
    yield
    structlog.configure(**former)


def test_json_logs_are_one_object_per_line_with_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("it_failed", device="d")
    entry = json.loads(capsys.readouterr().err)
    assert (entry["event"], entry["device"], entry["level"]) == ("it_failed", "d", "error")
    assert "ValueError: boom" in entry["exception"]


def test_console_logs_are_readable_and_without_colours_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "console")
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("it_failed", device="d")
    text = capsys.readouterr().err
    assert "it_failed" in text
    assert "device=d" in text
    assert "ValueError: boom" in text
    assert "\x1b" not in text


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "console")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    text = capsys.readouterr().err
    assert "quiet" not in text
    assert "loud" in text


def test_what_libraries_log_is_json_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    configure_logging("info", "json")
    logging.getLogger("a.library").error("it %s", "failed")
    entry = json.loads(capsys.readouterr().err)
    assert (entry["event"], entry["logger"], entry["level"]) == ("it failed", "a.library", "error")
