"""Requests with a grammar: they wait for it, end with it, and may fail of it alone."""

from array import array

import msgspec
from fake_grammar import OneOutput
from token_device import TokenDevice, output_alone

from engine_core.core import EngineCore
from engine_core.device import RowGrammar, StepResult
from engine_core.events import ClientsChanged, GrammarCompiled, GrammarDenied, RequestArrived, RequestsAborted
from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.sampling import SamplingParams

LIMITS = SchedulerLimits(
    max_num_seqs=2, max_num_batched_tokens=16, max_model_len=200, kv_capacity_tokens=512, pool_lengths=(256,)
)
GRAMMAR = GrammarSpec(GrammarKind.REGEX, "a", "guided_regex", (7,))
CLIENT = ClientIndex(0)


class World:
    """The core and a device that knows no grammar: the results say what grammars do."""

    def __init__(self) -> None:
        self.core = EngineCore(Scheduler(LIMITS, [99]), drain_timeout_s=5.0)
        self.core.handle(ClientsChanged({CLIENT: "ipc:///a"}), 0.0)
        self.device = TokenDevice(512, 2, 16, LIMITS.pool_lengths)
        self.outputs: list[EngineCoreOutput] = []

    def arrive(
        self, name: str, grammar: GrammarSpec | None = GRAMMAR, attempt: int = 0, max_tokens: int = 3
    ) -> RequestKey:
        sampling = SamplingParams(max_tokens=max_tokens)
        request = EngineCoreRequest(RequestId(name), CLIENT, attempt, "m", 2, sampling, 0.0, grammar=grammar)
        self.take(self.core.handle(RequestArrived(request, array("I", [1, 2])), 0.0))
        return request.key

    def take(self, outputs: OutputsByClient) -> None:
        self.core.check_invariants()
        self.outputs += outputs.get(CLIENT, [])

    def step(self, ends: dict[int, str | None] | None = None) -> RowGrammar | None:
        """Returns the grammar of the first sequence admitted."""
        plan = self.core.plan()
        assert plan is not None
        result: StepResult = msgspec.structs.replace(self.device.run(plan), grammar_ends=ends or {})
        self.take(self.core.complete(result, 0.0))
        return plan.admissions[0].grammar if plan.admissions else None


def test_a_request_runs_once_its_grammar_is_there_and_others_do_not_wait() -> None:
    world = World()
    first, second = world.arrive("a"), world.arrive("b", grammar=None)
    assert world.core.take_status().load.waiting == 2
    while len(world.outputs) < 3:
        assert world.step() is None
    assert {output.key for output in world.outputs} == {second}
    world.step()
    assert world.core.plan() is None
    grammar = OneOutput((5,))
    world.core.handle(GrammarCompiled(first, grammar), 0.0)
    assert world.step() == RowGrammar(grammar, (7,))
    assert world.outputs[-1].key == first


def test_a_denied_grammar_ends_its_request_alone_and_names_the_field() -> None:
    world = World()
    first, second = world.arrive("a"), world.arrive("b")
    world.take(world.core.handle(GrammarDenied(first, "not closed"), 0.0))
    [output] = world.outputs
    assert (output.key, output.finish_reason, output.position) == (first, FinishReason.ERROR, 0)
    assert (output.error, output.error_field) == ("guided_regex: not closed", "guided_regex")
    status = world.core.take_status()
    assert (status.ended, status.load.waiting) == ([first], 1)
    world.core.handle(GrammarCompiled(second, OneOutput((5,))), 0.0)
    world.step()
    assert world.outputs[-1].key == second


def test_a_failure_of_ours_blames_no_field() -> None:
    world = World()
    world.take(world.core.handle(GrammarDenied(world.arrive("a"), "failed", is_own_fault=True), 0.0))
    assert (world.outputs[0].error, world.outputs[0].error_field) == ("guided_regex: failed", "")


def test_what_comes_for_a_request_that_has_ended_is_passed_over() -> None:
    world = World()
    aborted = world.arrive("a")
    world.core.handle(RequestsAborted([aborted]), 0.0)
    replaced, newer = world.arrive("b"), world.arrive("b", attempt=1)
    for key in (aborted, replaced):
        world.take(world.core.handle(GrammarCompiled(key, OneOutput((5,))), 0.0))
        world.take(world.core.handle(GrammarDenied(key, "late"), 0.0))
    assert not world.outputs and world.core.plan() is None
    world.core.handle(GrammarCompiled(newer, OneOutput((5,))), 0.0)
    world.step()
    assert world.outputs[-1].key == newer
    assert sorted(world.core.take_status().ended) == sorted([aborted, replaced])


def test_the_end_of_a_grammar_is_a_stop_also_at_the_last_token() -> None:
    for max_tokens in (1, 3):
        world = World()
        world.core.handle(GrammarCompiled(world.arrive("a", max_tokens=max_tokens), OneOutput((5,))), 0.0)
        world.step({0: None})
        [output] = world.outputs
        assert (output.finish_reason, output.token_ids) == (FinishReason.STOP, output_alone(array("I", [1, 2]), 1))


def test_a_row_that_cannot_go_on_fails_without_its_token() -> None:
    world = World()
    key = world.arrive("a")
    world.core.handle(GrammarCompiled(key, OneOutput((5,))), 0.0)
    world.step()
    world.step({0: "too ambiguous"})
    assert world.outputs[-1].finish_reason is FinishReason.ERROR
    assert (world.outputs[-1].position, world.outputs[-1].token_ids) == (1, [])
    assert world.outputs[-1].error_field == "guided_regex"
    assert world.core.take_status().ended == [key]
