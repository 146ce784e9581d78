"""The process in which a grammar is compiled for the first time: `python -m engine_core.grammar_prober`.

A small schema can take minutes and gigabytes to compile, or seconds for each token, and native code that does so
cannot be interrupted. So an untried grammar is compiled here and followed for some tokens, under limits that end this
process alone. Frames on stdin: a model card, then grammars, one at a time; on stdout an answer to each.

It ends when stdin does: with the engine core, whichever way that dies.
"""

import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

import msgspec
import numpy as np

from engine_core.grammar import Bitmask, Grammar, GrammarRefused, Matcher
from engine_core.xgrammar_backend import XgrammarBackend
from protocol.card import ModelCard
from protocol.grammar import GrammarSpec

LIMIT_S = 5.0
"""Wall clock for one grammar; SIGALRM, which nobody handles, then ends the process."""
MAX_COMPILE_CPU_S = 2.0
"""The engine core compiles what passed once more. A schema of 300 properties takes 0.1 s (2 x86 cores)."""
MAX_GRAMMAR_BYTES = 64 * 1024 * 1024
"""Compiled."""
MAX_TOKEN_CPU_S = 0.05
"""For one token on the walks, to accept it and to find what may follow; most take 0.1 ms, a pattern such as
`.{1,500}` 13 ms, an enumeration of 10,000 strings 26 ms (49,152 tokens, 2 x86 cores)."""
MAX_MEMORY_BYTES = 4 * 2**30
"""Of address space, on Linux; macOS enforces no such limit, and the time bounds what is taken."""
WALKS = 2
WALK_TOKENS = 100
"""What an ambiguous grammar costs grows with the output, at least with its square."""
LENGTH_BYTES = 4

_encoder = msgspec.msgpack.Encoder()


class Verdict(msgspec.Struct, frozen=True):
    """The answer to a frame."""

    refusal: str | None = None
    """For the caller; None when the grammar may be used."""


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end of the stream, also when that is inside of a frame."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    frame = stream.read(length)
    return frame if len(frame) == length else None


def write_frame(stream: BinaryIO, content: msgspec.Struct) -> None:
    """Writes and flushes."""
    encoded = _encoder.encode(content)
    stream.write(len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded)
    stream.flush()


def probe(backend: XgrammarBackend, spec: GrammarSpec, card: ModelCard) -> None:
    """Raises GrammarRefused."""
    start_s = time.process_time()
    grammar = backend.compile(spec)
    if time.process_time() - start_s > MAX_COMPILE_CPU_S:
        raise GrammarRefused("it takes too long to compile")
    if grammar.nbytes > MAX_GRAMMAR_BYTES:
        raise GrammarRefused("it is too large when compiled")
    for seed in range(WALKS):
        _walk(grammar, random.Random(seed), card)


def _walk(grammar: Grammar, choice: random.Random, card: ModelCard) -> None:
    """Follows the grammar along tokens drawn from all that it allows, as far as it goes."""
    ends = list(card.eos_token_ids)
    vocab_size = card.vocab_size
    matcher = grammar.matcher()
    bitmask = np.zeros((1, -(-vocab_size // 32)), np.int32)
    for _ in range(WALK_TOKENS):
        start_s = time.process_time()
        token_id = _next_token(matcher, bitmask, choice, ends)
        if token_id is not None:
            matcher.accept(token_id)
        if time.process_time() - start_s > MAX_TOKEN_CPU_S:
            raise GrammarRefused("it is too ambiguous: to find the next tokens takes too long")
        if token_id is None or matcher.has_ended:
            return


def _next_token(matcher: Matcher, bitmask: Bitmask, choice: random.Random, ends: Sequence[int]) -> int | None:
    """None where the output can only end."""
    matcher.fill(bitmask, 0)
    allowed = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little"))
    further = np.setdiff1d(allowed, ends)
    if not len(allowed):
        raise GrammarRefused("it leads to where no token of the model's vocabulary is allowed")
    return int(further[choice.randrange(len(further))]) if len(further) else None


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine core, which ends this process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    frames, answers = sys.stdin.buffer, sys.stdout.buffer
    packed_card = read_frame(frames)
    if packed_card is None:
        return
    card = msgspec.msgpack.decode(packed_card, type=ModelCard)
    backend = XgrammarBackend(card)
    write_frame(answers, Verdict())
    decoder = msgspec.msgpack.Decoder(GrammarSpec)
    while (frame := read_frame(frames)) is not None:
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        write_frame(answers, _verdict(backend, decoder.decode(frame), card))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _verdict(backend: XgrammarBackend, spec: GrammarSpec, card: ModelCard) -> Verdict:
    try:
        probe(backend, spec, card)
    except GrammarRefused as refused:
        return Verdict(str(refused))
    except MemoryError:
        return Verdict("it takes too much memory to compile")
    return Verdict()


if __name__ == "__main__":
    main()
