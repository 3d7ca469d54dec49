"""Levels and formats of the log of `heddle serve`."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from heddle.cli import logs
from heddle.cli.logs import BackgroundHandler, JsonFormatter, logging_to_stderr
from heddle.server.http.access_log import ENDS, STARTS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "heddle.engine.loop"
SLOT = "heddle.requests.start.slot"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Leaves the levels of loggers as they were."""
    loggers = [logging.getLogger(name) for name in (None, "heddle", STARTS)]
    before = [logger.level for logger in loggers]
    logging.getLogger("heddle").setLevel(logging.NOTSET)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def write() -> None:
    """Write a line of each level to each logger."""
    for name in (STARTS, SLOT, ENDS, ENGINE):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(level, "%s of %s", logging.getLevelName(level), name)


def shown(
    capsys: pytest.CaptureFixture[str], level: str, *, verbose: bool = False
) -> dict[str, str]:
    """The lowest level of lines that is shown, by logger."""
    with logging_to_stderr(level, "text", verbose=verbose):
        write()
    found: dict[str, str] = {}
    for line in capsys.readouterr().err.splitlines():
        found.setdefault(line.split()[-1], line.split()[2])
    return found


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("warning", "error", "info", "debug"):
        assert shown(capsys, level) == dict.fromkeys((STARTS, SLOT, ENDS, ENGINE), level.upper())


def test_verbose_is_one_line_per_request(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "warning", verbose=True)
    assert lines == {STARTS: "WARNING", SLOT: "WARNING", ENDS: "INFO", ENGINE: "INFO"}
    both = dict.fromkeys((STARTS, SLOT, ENDS, ENGINE), "INFO")
    assert shown(capsys, "info", verbose=True) == both


def test_debug_stays(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("heddle").setLevel(logging.DEBUG)
    assert shown(capsys, "warning")[ENGINE] == "DEBUG"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger(ENGINE)
    with logging_to_stderr("info", "json", verbose=False):
        log.warning("a step took %.1f s\nforged", 3)
        log.info("for people", extra={"fields": {"event": "request_end", "status": 200}})
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed")
        log.warning("slow", extra={"fields": {"reason": "disk"}})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    times = [line.pop("time") for line in lines]
    assert all(time.endswith("+00:00") for time in times)
    plain, fields, failed, both = lines
    assert both == {"level": "warning", "logger": ENGINE, "message": "slow", "reason": "disk"}
    assert plain == {
        "level": "warning",
        "logger": ENGINE,
        "message": "a step took 3.0 s\nforged",
    }
    assert fields == {"level": "info", "logger": ENGINE, "event": "request_end", "status": 200}
    assert failed["exception"].endswith("ValueError: no")


class Stuck(logging.StreamHandler[io.StringIO]):
    """A handler that writes nothing while its gate is closed."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.gate, self.entered = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        super().emit(record)


def test_a_pipe_that_takes_nothing_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_LINES", 3)
    stuck = Stuck()
    handler = BackgroundHandler(stuck)
    records = [logging.makeLogRecord({"msg": f"line {number}"}) for number in range(9)]
    handler.handle(records[0])
    assert stuck.entered.wait(PATIENCE)
    for record in records[1:]:
        handler.handle(record)
    stuck.gate.set()
    handler.close()
    lines = stuck.stream.getvalue().splitlines()
    assert lines[:4] == ["line 0", "line 1", "line 2", "line 3"]
    assert lines[4:] == ["dropped 5 lines of the log that nobody took in time"]


def test_a_formatter_takes_any_value() -> None:
    record = logging.makeLogRecord({"levelno": logging.INFO, "fields": {"value": set}})
    assert json.loads(JsonFormatter().format(record))["value"] == "<class 'set'>"
