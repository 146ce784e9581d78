"""Structured output on the demo model, through scheduler and device, with xgrammar itself."""

import itertools
import json
import queue
import re
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from deploy.cache import cache_directory
from deploy.demo_model import Weights, ensure_demo_model
from engine_core.config import EngineCoreConfig
from engine_core.device import OpenedModel
from engine_core.events import GrammarCompiled, GrammarDenied
from engine_core.grammar_thread import GrammarThread
from engine_core.mlx_device import MlxDevice, open_mlx_device
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from protocol.sampling import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MOST_GAP_S = 4.0
"""Between two tokens of a stream on a busy machine; what it must not wait for takes 5 s (grammar_prober.LIMIT_S)."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "colours", "married"],
    "additionalProperties": False,
}
SHAPE = {
    "anyOf": [
        {"enum": ["point", None, 7]},
        {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 2, "maxItems": 2},
    ]
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "l": {"$ref": "#/$defs/leaf"}},
            "required": ["v"],
            "additionalProperties": False,
        },
        "leaf": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
    },
    "$ref": "#/$defs/node",
}


@pytest.fixture(scope="module")
def opened() -> Iterator[OpenedModel]:
    folder = ensure_demo_model(cache_directory(), Weights.FLOAT32)
    config = EngineCoreConfig(
        engines_address="ipc:///unused", model=str(folder), max_num_seqs=8, max_model_len=512, async_scheduling=True
    )
    model = open_mlx_device(config, lambda _share, _name: None)
    yield model
    model.device.close()


@pytest.fixture(scope="module")
def tokenizer(opened: OpenedModel) -> Any:
    return Tokenizer.from_str(opened.card.tokenizer_json)


@pytest.fixture(scope="module")
def grammars(opened: OpenedModel) -> Iterator["Compiler"]:
    compiler = Compiler(opened)
    yield compiler
    compiler.close()


class Compiler:
    """The grammar thread, running."""

    def __init__(self, model: OpenedModel) -> None:
        self.events: queue.SimpleQueue[GrammarCompiled | GrammarDenied] = queue.SimpleQueue()
        self._thread = GrammarThread(model.card, self.events.put)
        self._runner = threading.Thread(target=self._thread.run, daemon=True)
        self._runner.start()
        self.compile = self._thread.compile

    def close(self) -> None:
        self._thread.close()
        self._runner.join(10)
        assert not self._runner.is_alive()


class Engine:
    """Scheduler and device, with or without a step ahead."""

    def __init__(self, model: OpenedModel, grammars: Compiler, tokenizer: Any, lookahead: bool, **limits: Any) -> None:
        assert isinstance(model.device, MlxDevice)
        self._model, self._grammars, self._tokenizer = model, grammars, tokenizer
        self._most_ahead = int(lookahead)
        defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 512}
        self.scheduler = Scheduler(
            SchedulerLimits(
                **{**defaults, "kv_capacity_tokens": model.device.kv_capacity_tokens, **limits},
                pool_lengths=tuple(model.device.pool_lengths),
            ),
            model.card.eos_token_ids,
        )
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self._times_s: dict[str, list[float]] = defaultdict(list)

    def add(
        self, name: str, prompt: str, grammar: GrammarSpec | None = None, output: Sequence[int] = (), **sampling: Any
    ) -> None:
        ids = [*self._tokenizer.encode(prompt).ids, *output]
        params = SamplingParams(**{"max_tokens": 120, "seed": len(self.outputs), **sampling})
        request = EngineCoreRequest(
            RequestId(name),
            ClientIndex(0),
            0,
            "m",
            len(ids),
            params,
            0.0,
            num_output_tokens=len(output),
            grammar=grammar,
        )
        self.outputs[name] = []
        self._take(self.scheduler.add(request, array("I", ids)))
        if grammar is not None:
            self._grammars.compile(request.key, grammar)

    def run(self) -> None:
        """Until all have ended."""
        in_flight = 0
        while self.scheduler.has_work:
            self._take_grammars(is_idle=False)
            plan = self.scheduler.plan()
            if plan is not None:
                self._model.device.submit(plan)
                in_flight += 1
            elif not in_flight:
                self._take_grammars(is_idle=True)
            if in_flight and (plan is None or in_flight > self._most_ahead):
                self._take(self.scheduler.update(self._model.device.collect()))
                in_flight -= 1
            self.scheduler.check_invariants()
        self._model.device.check_invariants()

    def _take_grammars(self, *, is_idle: bool) -> None:
        while is_idle or not self._grammars.events.empty():
            event = self._grammars.events.get(timeout=60)
            is_idle = False
            if isinstance(event, GrammarCompiled):
                self.scheduler.grammar_compiled(event.key, event.grammar)
            else:
                self._take(self.scheduler.grammar_denied(event.key, event.error))

    def gaps_s(self, name: str) -> list[float]:
        """Between the tokens of an output."""
        times = self._times_s[name]
        return [after - before for before, after in itertools.pairwise(times)]

    def _take(self, outputs: dict[ClientIndex, list[EngineCoreOutput]]) -> None:
        for output in outputs.get(ClientIndex(0), []):
            self.outputs[output.request_id].append(output)
            self._times_s[output.request_id].append(time.monotonic())

    def ids(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]

    def text(self, name: str) -> str:
        return str(self._tokenizer.decode(self.ids(name)))

    def end(self, name: str) -> EngineCoreOutput:
        return self.outputs[name][-1]


def schema(content: object) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(content), "response_format")


@pytest.mark.parametrize("lookahead", [False, True])
def test_every_output_fits_its_grammar_beside_rows_without_one(
    opened: OpenedModel, grammars: Compiler, tokenizer: Any, lookahead: bool
) -> None:
    free = Engine(opened, grammars, tokenizer, lookahead)
    for i in range(2):
        free.add(f"free {i}", "Once upon a time", max_tokens=24)
    free.run()
    engine = Engine(opened, grammars, tokenizer, lookahead)
    for i in range(2):
        engine.add(f"free {i}", "Once upon a time", max_tokens=24)
    wanted: dict[str, Any] = {"person": PERSON, "shape": SHAPE, "tree": TREE}
    for i in range(3):
        for name, content in wanted.items():
            engine.add(f"{name} {i}", f"A {name} as JSON: ", schema(content))
    engine.add("regex", "My phone number: ", GrammarSpec(GrammarKind.REGEX, r"[0-9]{3}-[0-9]{4}", "guided_regex"))
    engine.add("ebnf", "Yes or no? ", GrammarSpec(GrammarKind.EBNF, 'root ::= ("yes" | "no") "!"', "guided_grammar"))
    engine.run()
    for name in engine.outputs:
        if name.startswith("free"):
            assert engine.ids(name) == free.ids(name)
        elif name == "regex":
            assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", engine.text(name))
        elif name == "ebnf":
            assert engine.text(name) in ("yes!", "no!")
        else:
            jsonschema.validate(json.loads(engine.text(name)), wanted[name.split()[0]])
        if not name.startswith("free"):
            assert engine.end(name).finish_reason is FinishReason.STOP, name


def test_max_tokens_cuts_an_output_off(opened: OpenedModel, grammars: Compiler, tokenizer: Any) -> None:
    engine = Engine(opened, grammars, tokenizer, lookahead=True)
    engine.add("a", "A person as JSON: ", schema(PERSON), max_tokens=5)
    engine.run()
    assert (engine.end("a").finish_reason, len(engine.ids("a"))) == (FinishReason.LENGTH, 5)
    assert engine.text("a").startswith("{")


@pytest.mark.parametrize("after", [1, 9])
def test_a_resumed_output_goes_on_in_its_grammar(
    opened: OpenedModel, grammars: Compiler, tokenizer: Any, after: int
) -> None:
    whole = Engine(opened, grammars, tokenizer, lookahead=True)
    whole.add("a", "A person as JSON: ", schema(PERSON), seed=4)
    whole.run()
    ids = whole.ids("a")
    resumed = Engine(opened, grammars, tokenizer, lookahead=True)
    resumed.add("a", "A person as JSON: ", schema(PERSON), output=ids[:after], seed=4)
    resumed.run()
    assert resumed.ids("a") == ids[after:]
    assert resumed.end("a").finish_reason is FinishReason.STOP


def test_ends_and_minimum_tokens(opened: OpenedModel, grammars: Compiler, tokenizer: Any) -> None:
    # BR-e13, BR-e15: the grammar decides when an output may end, and when it must
    [eos] = opened.card.eos_token_ids
    engine = Engine(opened, grammars, tokenizer, lookahead=True)
    engine.add("minimum", "True? ", schema({"type": "boolean"}), min_tokens=20)
    engine.add("ignoring", "True? ", schema({"type": "boolean"}), ignore_eos=True)
    engine.add("banned", "True? ", schema({"type": "boolean"}), logit_bias={eos: -100.0})
    engine.add("wanted", "A person: ", schema(PERSON), logit_bias={eos: 100.0})
    engine.run()
    for name in ("minimum", "ignoring", "banned"):
        assert json.loads(engine.text(name)) in (True, False), name
    jsonschema.validate(json.loads(engine.text("wanted")), PERSON)
    assert {engine.end(name).finish_reason for name in engine.outputs} == {FinishReason.STOP}


def test_logprobs_are_those_of_the_model(opened: OpenedModel, grammars: Compiler, tokenizer: Any) -> None:
    engine = Engine(opened, grammars, tokenizer, lookahead=True)
    engine.add("a", "A person: ", schema(PERSON), logprobs=2, max_tokens=8)
    engine.run()
    assert all(output.logprobs is not None for output in engine.outputs["a"])


def test_a_grammar_that_starts_behind_thoughts(opened: OpenedModel, grammars: Compiler, tokenizer: Any) -> None:
    # BR-d07
    [start] = tokenizer.encode(".").ids
    wanted = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(PERSON), "response_format", starts_after=(start,))
    engine = Engine(opened, grammars, tokenizer, lookahead=True)
    engine.add("a", "Once upon a time, there", wanted, temperature=0.0, max_tokens=200)
    engine.run()
    ids = engine.ids("a")
    thoughts, answer = ids[: ids.index(start) + 1], ids[ids.index(start) + 1 :]
    assert len(thoughts) > 3
    jsonschema.validate(json.loads(tokenizer.decode(answer)), PERSON)


def test_streams_go_on_while_a_hostile_grammar_compiles(
    opened: OpenedModel, grammars: Compiler, tokenizer: Any
) -> None:
    # BR-e04
    hostile = GrammarSpec(GrammarKind.EBNF, 'root ::= s\ns ::= s s s | s s | [a-z] | [a-z] s | "" ', "guided_grammar")
    engine = Engine(opened, grammars, tokenizer, lookahead=False)
    engine.add("stream", "Once upon a time", ignore_eos=True, max_tokens=25)
    engine.add("hostile", "Once", hostile)
    engine.add("good", "A person: ", schema(PERSON), max_tokens=4)
    engine.run()
    assert "too" in str(engine.end("hostile").error)
    assert engine.end("hostile").error_field == "guided_grammar"
    assert len(engine.ids("good")) == 4 and len(engine.ids("stream")) == 25
    assert max(engine.gaps_s("stream")) < MOST_GAP_S
