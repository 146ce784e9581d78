"""Log lines as text and JSON."""

import json
import logging
from collections.abc import Iterator

import pytest

from protocol.logs import set_up_logging


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_names_the_process_and_the_exception(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("engine-0", "info", "json")
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("shoal.test").exception("it %s", "failed")
    line = json.loads(capsys.readouterr().err)
    assert (line["process"], line["level"], line["logger"], line["message"]) == (
        "engine-0",
        "error",
        "shoal.test",
        "it failed",
    )
    assert "ValueError: bad" in line["exception"]


def test_a_text_line_names_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("api-0", "warning", "text")
    logging.getLogger("shoal.test").info("not shown")
    logging.getLogger("shoal.test").warning("shown")
    assert capsys.readouterr().err.rstrip().endswith("W api-0 shown")
