"""Grammars that would stall or kill an engine core are refused: a process of their own dies of them."""

import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "engine_core"))
from byte_model import byte_card

from engine_core.events import GrammarCompiled, GrammarDenied
from engine_core.grammar import GrammarRefused
from engine_core.grammar_probe import GrammarProbe
from engine_core.grammar_prober import LIMIT_S
from engine_core.grammar_thread import GrammarThread
from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import RequestId
from protocol.messages import RequestKey

GOOD = GrammarSpec(GrammarKind.REGEX, "[0-9]+", "f")
AMBIGUOUS = 'root ::= s\ns ::= s s s | s s | [a-z] | [a-z] s | "" '


@pytest.fixture
def probe() -> Iterator[GrammarProbe]:
    probe = GrammarProbe(byte_card())
    yield probe
    probe.close()


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (GrammarKind.EBNF, AMBIGUOUS, "too"),
        (GrammarKind.REGEX, "a[^\\x00-\\U0010ffff]", "no token"),
        (GrammarKind.EBNF, "root ::= foo", "not defined"),
    ],
)
def test_a_hostile_grammar_is_refused_in_time_and_the_next_is_not(
    probe: GrammarProbe, kind: GrammarKind, text: str, reason: str
) -> None:
    probe.check(GOOD)
    start_s = time.monotonic()
    with pytest.raises(GrammarRefused, match=reason):
        probe.check(GrammarSpec(kind, text, "f"))
    assert time.monotonic() - start_s < LIMIT_S + 3
    probe.check(GOOD)


def prober() -> psutil.Process:
    """Of this process's children, among which a cluster of other tests may be."""
    [child] = [each for each in psutil.Process().children() if "engine_core.grammar_prober" in each.cmdline()]
    return child


def test_a_killed_process_is_replaced(probe: GrammarProbe) -> None:
    probe.check(GOOD)
    child = prober()
    child.send_signal(signal.SIGKILL)
    with pytest.raises(GrammarRefused):
        probe.check(GOOD)
    probe.check(GOOD)


def test_the_process_ends_with_its_engine_core(probe: GrammarProbe) -> None:
    probe.check(GOOD)
    child = prober()
    probe.close()
    child.wait(5)


def test_a_tokenizer_that_cannot_be_taken_fails_requests_alone() -> None:
    # BR-e03
    events: queue.SimpleQueue[GrammarCompiled | GrammarDenied] = queue.SimpleQueue()
    card = msgspec.structs.replace(byte_card(), tokenizer_json='{"model": {"vocab": 7}}')
    grammars = GrammarThread(card, events.put)
    for name in "ab":
        grammars.compile(RequestKey(RequestId(name)), GOOD)
    grammars.close()
    grammars.run()
    for name in "ab":
        outcome = events.get_nowait()
        assert isinstance(outcome, GrammarDenied) and outcome.is_own_fault and outcome.key.request_id == name


def test_the_thread_answers_each_request_once_and_keeps_what_it_knows() -> None:
    events: queue.SimpleQueue[GrammarCompiled | GrammarDenied] = queue.SimpleQueue()
    grammars = GrammarThread(byte_card(), events.put)
    thread = threading.Thread(target=grammars.run)
    thread.start()
    wanted = [GOOD, GrammarSpec(GrammarKind.REGEX, "(", "g"), GrammarSpec(GrammarKind.REGEX, "[0-9]+", "other field")]
    for number, spec in enumerate(wanted):
        grammars.compile(RequestKey(RequestId(str(number))), spec)
    outcomes: list[Any] = [events.get(timeout=30) for _ in wanted]
    assert [type(outcome) for outcome in outcomes] == [GrammarCompiled, GrammarDenied, GrammarCompiled]
    assert [outcome.key.request_id for outcome in outcomes] == ["0", "1", "2"]
    assert outcomes[0].grammar is outcomes[2].grammar
    grammars.close()
    thread.join(10)
    assert not thread.is_alive()
