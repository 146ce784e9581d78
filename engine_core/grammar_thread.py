"""The thread that compiles grammars: off the busy loop, one at a time, in the order in which they came.

What is new is tried in another process first (engine_core.grammar_probe), under limits of time and memory. What passed
is compiled here, where the GIL is free meanwhile, and kept.
"""

import logging
import queue
from collections.abc import Callable

from engine_core.events import GrammarCompiled, GrammarDenied
from engine_core.grammar import Grammar, GrammarRefused
from engine_core.grammar_cache import GrammarCache
from engine_core.grammar_probe import GrammarProbe
from engine_core.xgrammar_backend import XgrammarBackend
from engine_core.xgrammar_library import GrammarsMissing
from protocol.card import ModelCard
from protocol.grammar import GrammarSpec
from protocol.messages import RequestKey

logger = logging.getLogger("shoal.engine_core")


class GrammarThread:
    """Made by the main thread; `run` in a thread of its own; the others may be called from any."""

    name = "grammars"

    def __init__(self, card: ModelCard, on_event: Callable[[GrammarCompiled | GrammarDenied], None]) -> None:
        """`on_event` is called in this thread. xgrammar is loaded with the first grammar."""
        self._card = card
        self._on_event = on_event
        self._wanted: queue.SimpleQueue[tuple[RequestKey, GrammarSpec] | None] = queue.SimpleQueue()
        self._cache = GrammarCache()
        self._probe = GrammarProbe(card)
        self._backend: XgrammarBackend | None = None

    def compile(self, key: RequestKey, spec: GrammarSpec) -> None:
        """GrammarCompiled or GrammarDenied follows, whatever happens."""
        self._wanted.put((key, spec))

    def close(self) -> None:
        """`run` returns soon."""
        self._wanted.put(None)
        self._probe.close()

    def run(self) -> None:
        """Until `close`."""
        while (wanted := self._wanted.get()) is not None:
            self._on_event(self._answer(*wanted))

    def _answer(self, key: RequestKey, spec: GrammarSpec) -> GrammarCompiled | GrammarDenied:
        try:
            outcome = self._outcome(spec)
        except Exception:  # the border of one request: xgrammar, or a tokenizer that it cannot take
            logger.exception("request %s: its grammar could not be compiled", key.request_id)
            return GrammarDenied(key, "the grammar back end failed", is_own_fault=True)
        return GrammarDenied(key, outcome) if isinstance(outcome, str) else GrammarCompiled(key, outcome)

    def _outcome(self, spec: GrammarSpec) -> Grammar | str:
        text = spec.kind, spec.text
        known = self._cache.get(text)
        if known is not None:
            return known
        try:
            outcome: Grammar | str = self._compile(spec)
        except GrammarRefused as refused:
            outcome = str(refused)
        except GrammarsMissing as missing:
            return str(missing)
        self._cache.put(text, outcome)
        return outcome

    def _compile(self, spec: GrammarSpec) -> Grammar:
        if self._backend is None:
            self._backend = XgrammarBackend(self._card)
            logger.info("grammar back end loaded")
        self._probe.check(spec)
        return self._backend.compile(spec)
