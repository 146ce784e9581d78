"""Loading is told in whole lines, and only when it takes long."""

import logging

import pytest

from deploy.load_display import LINE_EVERY_S, LoadDisplay
from protocol.lifeline import Notice


def test_a_line_now_and_then_while_a_process_loads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    display = LoadDisplay()
    for second in range(12):
        display.update("engine-0", Notice("loading", second / 20, "weights"), float(second))
    assert caplog.messages == [
        "engine-0 loads [#####...............]  25 % weights",
        "engine-0 loads [##########..........]  50 % weights",
    ]


def test_what_loads_quickly_is_not_worth_a_line_nor_is_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    display = LoadDisplay()
    display.update("engine-0", Notice("loading", 0.5), 0.0)
    display.update("engine-0", Notice("ready"), 1.0)
    display.update("engine-0", Notice("loading", 0.5), LINE_EVERY_S + 1)
    assert caplog.messages == []
