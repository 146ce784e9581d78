"""The engine core's end of the process in which untried grammars are compiled (engine_core.grammar_prober)."""

import signal
import subprocess
import sys

import msgspec

from engine_core.grammar import GrammarRefused
from engine_core.grammar_prober import Verdict, read_frame, write_frame
from protocol.card import ModelCard
from protocol.grammar import GrammarSpec


class GrammarProbe:
    """Owner of that process: started for the first grammar, and again after one that ended it.

    One thread calls `check`; any may call `close`.
    """

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def check(self, spec: GrammarSpec) -> None:
        """Returns when the grammar may be compiled here. Raises GrammarRefused."""
        process = self._process or self._start()
        verdict = _ask(process, spec)
        if verdict is None:
            raise GrammarRefused(self._cause_of_death(process))
        if verdict.refusal is not None:
            raise GrammarRefused(verdict.refusal)

    def close(self) -> None:
        """A check under way is refused."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "engine_core.grammar_prober"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._process = process
        if self._closed:
            process.kill()
        if _ask(process, self._card) is None:
            raise GrammarRefused(self._cause_of_death(process))
        return process

    def _cause_of_death(self, process: "subprocess.Popen[bytes]") -> str:
        self._process = None
        if process.wait() == -signal.SIGALRM:
            return "it takes too long to compile"
        return "the engine core is ending" if self._closed else "it takes too much to compile"


def _ask(process: "subprocess.Popen[bytes]", content: msgspec.Struct) -> Verdict | None:
    """None when the process died of it."""
    assert process.stdin is not None and process.stdout is not None
    try:
        write_frame(process.stdin, content)  # type: ignore[arg-type]
        answer = read_frame(process.stdout)  # type: ignore[arg-type]
    except BrokenPipeError:
        return None
    return None if answer is None else msgspec.msgpack.decode(answer, type=Verdict)
