"""Choices over scripted collectors in any order of events: nothing lost, nothing aborted twice."""

import asyncio
from collections.abc import Sequence

from http_fakes import FakeBackend, Step, ids, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from api_server.choices import ChoicePlan, Choices, RequestPlan
from api_server.generation_backend import AbortCause, GenerationFailed, TokenDelta
from api_server.placement import Placement
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams

pieces = st.lists(st.sampled_from(["one ", "two ", "stop ", "three "]), min_size=1, max_size=6)


def plan(count: int) -> RequestPlan:
    choice = ChoicePlan([5, 6], SamplingParams(max_tokens=9))
    return RequestPlan(tiny_model(), [choice] * count, count, 0, "", Placement(), "x", ["stop"], False, True)


def script(texts: list[str], ending: str) -> list[Step]:
    steps: list[Step] = [TokenDelta(ids(text)) for text in texts]
    if ending == "fails":
        return [*steps, GenerationFailed("lost", True)]
    return [*steps, TokenDelta([2], FinishReason.STOP)]


async def run(choices: list[tuple[list[str], str]], leave_after: int) -> tuple[FakeBackend, list[str], str]:
    def scripts(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        return script(*choices[number])

    backend = FakeBackend(scripts, [tiny_model()])
    got = [""] * len(choices)
    outcome = "ended"
    turns = 0
    try:
        async with Choices(backend, plan(len(choices))) as running:
            await running.submit()
            while running.running:
                for delta in await running.next():
                    got[delta.index] += delta.delta.text
                running.check_invariants()
                turns += 1
                if turns > leave_after:
                    raise asyncio.CancelledError
    except GenerationFailed:
        outcome = "failed"
    except asyncio.CancelledError:
        outcome = "left"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return backend, got, outcome


@given(
    choices=st.lists(st.tuples(pieces, st.sampled_from(["ends", "ends", "ends", "fails"])), min_size=1, max_size=5),
    leave_after=st.integers(0, 30),
)
def test_every_choice_ends_once_however_the_request_ends(
    choices: list[tuple[list[str], str]], leave_after: int
) -> None:
    backend, got, outcome = asyncio.run(run(choices, leave_after))
    aborted = [number for numbers, _ in backend.aborts for number in numbers]
    assert len(aborted) == len(set(aborted))
    stopped = {number for numbers, cause in backend.aborts for number in numbers if cause is AbortCause.STOP_STRING}
    if outcome == "ended":
        assert got == ["".join(texts).partition("stop")[0] for texts, _ in choices]
        assert stopped == {index for index, (texts, _) in enumerate(choices) if "stop " in texts}
        assert set(aborted) == stopped
    for index, (texts, _) in enumerate(choices):
        assert "".join(texts).partition("stop")[0].startswith(got[index])
        finished = len(backend.collectors) > index and not backend.collectors[index].steps_left
        assert index in aborted or finished
    causes = {cause for _, cause in backend.aborts} - {AbortCause.STOP_STRING}
    assert causes <= {"failed": {AbortCause.ERROR}, "left": {AbortCause.DISCONNECT}, "ended": set()}[outcome]
