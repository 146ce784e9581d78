"""The engine client over real sockets: coordinator, cluster state, outputs, and garbage on each."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import zmq.asyncio
from api_server_fakes import CARD, ENGINE, LIMIT_S, FakeCoordinator, FakeEngineCore, engine_state

from api_server import engine_client
from api_server.engine_client import ClusterRefusedUs, EngineClient, Patience
from api_server.generation_backend import AbortCause, Collector, NoModel, Rejected, UnknownModel
from api_server.links import Links
from api_server.metrics import Metrics
from api_server.placement import Placement
from protocol.addresses import CLIENTS, CLUSTER, ipc_address
from protocol.codec import encode
from protocol.identifiers import EngineIndex, Incarnation
from protocol.messages import (
    PROTOCOL_VERSION,
    TYPE_NUMBERS,
    Abort,
    ClientHello,
    ClusterSnapshot,
    EngineCoreOutput,
    EngineCoreRequest,
    EngineLost,
    EngineRun,
    EngineUpdate,
    FinishReason,
    Load,
    Refused,
    RejectReason,
    RequestEnded,
    RequestKey,
    wall_clock_s,
)
from protocol.messages import (
    Rejected as RejectedMessage,
)
from protocol.sampling import SamplingParams

SAMPLING = SamplingParams(max_tokens=16, temperature=0.0)


class Cluster:
    """An engine client with fakes at the other ends."""

    def __init__(self, directory: Path, admission_timeout_s: float) -> None:
        self.directory = directory
        self.context = zmq.asyncio.Context()
        self.metrics = Metrics()
        identity = b"api-0/inc"
        addresses = [ipc_address(directory, name) for name in (CLIENTS, CLUSTER, "outputs")]
        self.links = Links(self.context, *addresses, identity)
        hello = ClientHello(PROTOCOL_VERSION, "api-0", Incarnation("inc"), self.links.output_address, 1)
        loop = asyncio.get_running_loop()
        self.client = EngineClient(self.links, hello, Patience(admission_timeout_s, 20.0), self.metrics, loop.time)
        self.running = asyncio.create_task(self.client.run())
        self.engine = FakeEngineCore(self.context, self.links.output_address)
        self.coordinator: FakeCoordinator | None = None

    def start_coordinator(self, incarnation: str = "coordinator-1") -> FakeCoordinator:
        self.coordinator = FakeCoordinator(self.context, self.directory, incarnation)
        return self.coordinator

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110  (the far end of a socket has no event of ours)
                await asyncio.sleep(0.005)

    def submit(
        self, prompt_ids: list[int] | None = None, within_s: float | None = None, tenant: str = ""
    ) -> "asyncio.Task[Collector]":
        deadline_s = 0.0 if within_s is None else wall_clock_s() + within_s
        return asyncio.create_task(self._submit(prompt_ids or [0, 1], deadline_s, tenant))

    async def _submit(self, prompt_ids: list[int], deadline_s: float, tenant: str) -> Collector:
        model = await self.client.model("tiny")
        return await self.client.submit(model, prompt_ids, SAMPLING, 0, "", "cmpl", Placement(), deadline_s, tenant)

    async def close(self) -> None:
        self.client.check_invariants()
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await self.running
        self.engine.close()
        if self.coordinator is not None:
            await self.coordinator.close()
        self.links.close()
        self.context.term()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"shoal:{name}", labels) or 0.0


@pytest.fixture
async def lonely() -> AsyncIterator[Cluster]:
    """Without a coordinator."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        cluster = Cluster(Path(directory), admission_timeout_s=0.5)
        yield cluster
        await cluster.close()


@pytest.fixture
async def early() -> AsyncIterator[Cluster]:
    """Without a coordinator, but patient."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        cluster = Cluster(Path(directory), admission_timeout_s=LIMIT_S)
        yield cluster
        await cluster.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Connected, with a model."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        cluster = Cluster(Path(directory), admission_timeout_s=LIMIT_S)
        cluster.start_coordinator()
        await cluster.until(lambda: cluster.client.ready)
        yield cluster
        await cluster.close()


async def accepted(cluster: Cluster) -> tuple[EngineCoreRequest, Collector]:
    assert cluster.coordinator is not None
    submission = cluster.submit()
    request, _ = await cluster.coordinator.next_prompt()
    await cluster.coordinator.accept(request)
    return request, await asyncio.wait_for(submission, LIMIT_S)


async def read_to_the_end(collector: Collector) -> tuple[list[int], FinishReason]:
    token_ids: list[int] = []
    while True:
        delta = await asyncio.wait_for(collector.get(), LIMIT_S)
        token_ids += delta.token_ids
        if delta.finish_reason is not None:
            return token_ids, delta.finish_reason


async def test_hello_card_and_readiness(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    (hello,) = cluster.coordinator.hellos
    assert (hello.name, hello.version) == ("api-0", PROTOCOL_VERSION)
    assert (await cluster.client.model(None)).card.max_model_len == CARD.max_model_len
    assert [model.name for model in await cluster.client.models()] == ["tiny"]
    with pytest.raises(UnknownModel):
        await cluster.client.model("other")


async def test_not_ready_before_a_coordinator_and_without_a_model(lonely: Cluster) -> None:
    assert not lonely.client.ready
    with pytest.raises(NoModel, match="does not know yet"):
        await lonely.client.model("tiny")
    with pytest.raises(NoModel, match="does not know yet"):
        await lonely.client.models()


@pytest.mark.parametrize("name", ["tiny", None])
async def test_a_request_waits_until_the_models_are_known(early: Cluster, name: str | None) -> None:
    model, models = asyncio.create_task(early.client.model(name)), asyncio.create_task(early.client.models())
    await asyncio.sleep(0.1)
    assert not model.done()
    assert not models.done()
    early.start_coordinator()
    assert (await model).name == "tiny"
    assert [each.name for each in await models] == ["tiny"]


async def test_a_model_that_is_not_served_is_refused_as_soon_as_that_is_known(early: Cluster) -> None:
    model = asyncio.create_task(early.client.model("other"))
    early.start_coordinator()
    with pytest.raises(UnknownModel):
        await asyncio.wait_for(model, LIMIT_S / 2)


async def test_a_cluster_known_to_serve_nothing_is_not_waited_for(early: Cluster) -> None:
    early.start_coordinator().engines = []
    with pytest.raises(NoModel, match="no model is served yet"):
        await asyncio.wait_for(early.client.model("tiny"), LIMIT_S / 2)
    assert await early.client.models() == []


async def test_draining_ends_the_wait_for_models(early: Cluster) -> None:
    model = asyncio.create_task(early.client.model("tiny"))
    await asyncio.sleep(0)
    early.client.start_draining()
    with pytest.raises(NoModel):
        await asyncio.wait_for(model, LIMIT_S / 2)


async def test_what_was_known_stays_known_while_the_coordinator_is_away(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    await cluster.coordinator.close()
    cluster.coordinator = None
    await cluster.until(lambda: not cluster.client.is_connected)
    assert [model.name for model in await asyncio.wait_for(cluster.client.models(), LIMIT_S / 2)] == ["tiny"]


async def test_a_generation_streams_from_submission_to_finish(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submission = cluster.submit([1, 0, 2])
    request, prompt = await cluster.coordinator.next_prompt()
    assert prompt == [1, 0, 2]
    assert (request.client_index, request.num_prompt_tokens, request.model) == (7, 3, "tiny")
    assert not submission.done()
    await cluster.coordinator.accept(request)
    collector = await submission
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4], cached_tokens=2))
    delta = await collector.get()
    assert (delta.token_ids, delta.cached_tokens) == ([4], 2)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 1, [5, 6]))
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 3, [7], FinishReason.LENGTH))
    assert await read_to_the_end(collector) == ([5, 6, 7], FinishReason.LENGTH)
    assert cluster.count("request_success_total", model_name="tiny", finished_reason="length") == 1
    assert cluster.count("generation_tokens_total", model_name="tiny") == 4
    assert cluster.count("num_generations") == 0


async def test_many_generations_at_once_get_their_own_tokens(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submissions = {number: cluster.submit([number]) for number in range(100)}
    requests = {}
    for _ in submissions:
        request, (number,) = await cluster.coordinator.next_prompt()
        requests[number] = request
        await cluster.coordinator.accept(request)
    for position in range(16):
        finish = FinishReason.LENGTH if position == 15 else None
        await cluster.engine.push(
            *(
                EngineCoreOutput(request.request_id, 0, position, [number * 100 + position], finish)
                for number, request in requests.items()
            )
        )
    for number, submission in submissions.items():
        expected = [number * 100 + position for position in range(16)]
        assert await read_to_the_end(await submission) == (expected, FinishReason.LENGTH)


async def test_outputs_may_overtake_the_acceptance(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submission = cluster.submit()
    request, _ = await cluster.coordinator.next_prompt()
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4], FinishReason.STOP))
    collector = await asyncio.wait_for(submission, LIMIT_S)
    await cluster.coordinator.accept(request)
    assert await read_to_the_end(collector) == ([4], FinishReason.STOP)


async def test_a_repeated_message_changes_nothing(cluster: Cluster) -> None:
    request, collector = await accepted(cluster)
    for _ in range(2):
        await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4, 5]), sequence=0)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 2, [6], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([4, 5, 6], FinishReason.STOP)


async def resumed(cluster: Cluster, before: EngineCoreRequest) -> list[int]:
    """Waits until a generation is submitted again; accepts it, and returns what it is computed from."""
    assert cluster.coordinator is not None
    request, prompt = await cluster.coordinator.next_prompt()
    assert request.key == RequestKey(before.request_id, before.attempt + 1)
    await cluster.coordinator.accept(request)
    return prompt


async def test_a_gap_makes_the_generation_go_on_as_another_attempt(cluster: Cluster) -> None:
    request, collector = await accepted(cluster)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4]))
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 2, [6]))
    assert (await resumed(cluster, request))[-1] == 4
    await cluster.engine.push(EngineCoreOutput(request.request_id, 1, 1, [5], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([4, 5], FinishReason.STOP)
    assert cluster.count("requests_resumed_total", cause="outputs_lost") == 1
    assert cluster.count("request_success_total", model_name="tiny", finished_reason="stop") == 1


async def test_a_swapped_pair_of_messages_makes_the_generation_go_on_as_another_attempt(cluster: Cluster) -> None:
    request, collector = await accepted(cluster)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 1, [5]), sequence=1)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4]), sequence=0)
    await resumed(cluster, request)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 1, 0, [4], FinishReason.STOP), sequence=2)
    assert await read_to_the_end(collector) == ([4], FinishReason.STOP)


async def test_a_lost_last_message_is_noticed_by_the_next_one(cluster: Cluster) -> None:
    """Positions alone would leave the generation waiting for ever."""
    request, collector = await accepted(cluster)
    await cluster.engine.push(sequence=1)
    await resumed(cluster, request)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 1, 0, [4], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([4], FinishReason.STOP)


async def test_a_rejection_is_raised_with_its_reason(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submission = cluster.submit()
    request, _ = await cluster.coordinator.next_prompt()
    await cluster.coordinator.send(RejectedMessage(request.key, RejectReason.OVERLOADED, "too much", 2.5))
    with pytest.raises(Rejected) as rejected:
        await submission
    assert (rejected.value.reason, rejected.value.retry_after_s) == (RejectReason.OVERLOADED, 2.5)
    assert cluster.count("requests_rejected_total", reason="overloaded") == 1
    assert cluster.count("num_generations") == 0


async def test_an_abort_is_sent_once_and_nothing_follows(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    request, collector = await accepted(cluster)
    for _ in range(2):
        cluster.client.abort([collector], AbortCause.STOP_STRING)
    assert (await cluster.coordinator.next(Abort)).keys == [request.key]
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4]))
    await cluster.coordinator.nothing_more()
    assert cluster.count("requests_aborted_total", cause="stop_string") == 1
    assert cluster.count("request_success_total", model_name="tiny", finished_reason="stop") == 1


async def test_a_cancelled_submission_is_aborted(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submission = cluster.submit()
    request, _ = await cluster.coordinator.next_prompt()
    submission.cancel()
    assert (await cluster.coordinator.next(Abort)).keys == [request.key]
    with pytest.raises(asyncio.CancelledError):
        await submission
    assert cluster.count("requests_aborted_total", cause="disconnect") == 1


async def test_a_deadline_that_passes_before_an_answer_is_a_rejection(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    submission = cluster.submit(within_s=0.1)
    request, _ = await cluster.coordinator.next_prompt()
    assert request.deadline_s > request.arrival_time_s
    with pytest.raises(Rejected) as rejected:
        await asyncio.wait_for(submission, LIMIT_S)
    assert rejected.value.reason is RejectReason.TIMED_OUT
    assert (await cluster.coordinator.next(Abort)).keys == [request.key]


async def test_an_engine_core_that_forgets_a_deadline_is_reminded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.coordinator is not None
    monkeypatch.setattr(engine_client, "DEADLINE_GRACE_S", 0.05)
    submission = cluster.submit(within_s=0.1)
    request, _ = await cluster.coordinator.next_prompt()
    await cluster.coordinator.accept(request)
    collector = await asyncio.wait_for(submission, LIMIT_S)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4]))
    assert await read_to_the_end(collector) == ([4], FinishReason.TIMEOUT)
    assert (await cluster.coordinator.next(Abort)).keys == [request.key]


async def test_a_generation_that_ends_in_time_does_not_end_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.coordinator is not None
    monkeypatch.setattr(engine_client, "DEADLINE_GRACE_S", 0.0)
    submission = cluster.submit(within_s=0.2)
    request, _ = await cluster.coordinator.next_prompt()
    await cluster.coordinator.accept(request)
    collector = await asyncio.wait_for(submission, LIMIT_S)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4], FinishReason.LENGTH))
    assert await read_to_the_end(collector) == ([4], FinishReason.LENGTH)
    await cluster.coordinator.nothing_more(0.4)


async def test_the_end_of_a_tenants_request_is_told_with_what_it_used(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    for ends_by_itself in (True, False):
        submission = cluster.submit(tenant="t")
        request, _ = await cluster.coordinator.next_prompt()
        assert request.tenant == "t"
        await cluster.coordinator.accept(request)
        collector = await asyncio.wait_for(submission, LIMIT_S)
        finish = FinishReason.LENGTH if ends_by_itself else None
        await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4, 5], finish))
        await collector.get()
        if not ends_by_itself:
            cluster.client.abort([collector], AbortCause.STOP_STRING)
        ended = await cluster.coordinator.next(RequestEnded)
        assert (ended.request_id, ended.num_output_tokens) == (request.request_id, 2)
    assert (await cluster.coordinator.next(Abort)).keys == [request.key]


async def test_a_lost_engine_core_is_not_noticed(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    request, collector = await accepted(cluster)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4]))
    assert (await asyncio.wait_for(collector.get(), LIMIT_S)).token_ids == [4]
    await cluster.coordinator.send(EngineLost(EngineIndex(0), ENGINE, "killed by signal 9"))
    assert (await resumed(cluster, request))[-1] == 4
    await cluster.engine.push(EngineCoreOutput(request.request_id, 1, 1, [5], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([5], FinishReason.STOP)
    assert cluster.count("requests_resumed_total", cause="engine_lost") == 1


async def test_a_coordinator_that_does_not_answer_is_a_rejection_in_time(lonely: Cluster) -> None:
    coordinator = lonely.start_coordinator()
    await lonely.until(lambda: lonely.client.ready)
    submission = lonely.submit()
    request, _ = await coordinator.next_prompt()
    with pytest.raises(Rejected) as rejected:
        await submission
    assert rejected.value.reason is RejectReason.NO_ENGINE
    assert (await coordinator.next(Abort)).keys == [request.key]


async def test_a_restarted_coordinator_gets_what_was_not_answered_and_streams_go_on(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    streaming, collector = await accepted(cluster)
    unanswered = cluster.submit([1])
    first, _ = await cluster.coordinator.next_prompt()
    await cluster.coordinator.close()
    await cluster.until(lambda: not cluster.client.is_connected)
    assert not cluster.client.ready
    await cluster.engine.push(EngineCoreOutput(streaming.request_id, 0, 0, [4]))
    assert (await asyncio.wait_for(collector.get(), LIMIT_S)).token_ids == [4]
    waiting = cluster.submit([0])
    coordinator = cluster.start_coordinator("coordinator-2")
    second, _ = await coordinator.next_prompt()
    third, prompt = await coordinator.next_prompt()
    assert second == first
    assert prompt == [0]
    (hello,) = coordinator.hellos
    assert hello.client_index == 7
    assert hello.engines == [EngineRun(EngineIndex(0), ENGINE)]
    for request in (second, third):
        await coordinator.accept(request)
        await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [5], FinishReason.STOP))
    for submission in (unanswered, waiting):
        assert await read_to_the_end(await submission) == ([5], FinishReason.STOP)
    await cluster.engine.push(EngineCoreOutput(streaming.request_id, 0, 1, [6], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([6], FinishReason.STOP)
    await coordinator.nothing_more()
    await cluster.until(lambda: cluster.client.ready)


async def test_a_gap_in_the_cluster_state_brings_a_snapshot(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    snapshots = cluster.coordinator.snapshots
    cluster.coordinator.engines = [engine_state(Load(running=5))]
    update = EngineUpdate(cluster.coordinator.sequence + 2, engine_state(Load(running=4)))
    await cluster.coordinator.publish_raw(*encode(update))
    await cluster.until(lambda: cluster.client.view.engines[0].load.running == 5)
    assert cluster.coordinator.snapshots > snapshots


async def test_while_a_coordinator_settles_no_model_is_called_missing(cluster: Cluster) -> None:
    coordinator = cluster.coordinator
    assert coordinator is not None
    none_yet = ClusterSnapshot(coordinator.sequence + 1, coordinator.incarnation, settling=True)
    await coordinator.publish_raw(*encode(none_yet))
    await cluster.until(lambda: not cluster.client.ready)
    asked = asyncio.create_task(cluster.client.model("other"))
    await asyncio.sleep(0.1)
    assert not asked.done(), "its engine cores have not said Hello yet"
    settled = ClusterSnapshot(coordinator.sequence + 2, coordinator.incarnation)
    await coordinator.publish_raw(*encode(settled))
    with pytest.raises(UnknownModel):
        await asked


async def test_a_draining_engine_core_alone_is_not_ready(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    update = EngineUpdate(cluster.coordinator.sequence + 1, engine_state(Load(draining=True)))
    await cluster.coordinator.publish_raw(*encode(update))
    await cluster.until(lambda: not cluster.client.ready)
    assert (await cluster.client.model("tiny")).name == "tiny"


async def test_heartbeats_keep_us_a_member(cluster: Cluster) -> None:
    coordinator = cluster.coordinator
    assert coordinator is not None
    cluster.client.second_passed()
    await cluster.until(lambda: coordinator.heartbeats == 1)


async def test_it_goes_on_while_its_seconds_pass_with_or_without_a_coordinator(
    lonely: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely.client.second_passed()
    assert lonely.client.progressing, "nobody to talk to is no standstill"
    monkeypatch.setattr("api_server.engine_client.STALLED_AFTER_S", 0.0)
    assert not lonely.client.progressing


async def test_a_refusal_ends_the_client(lonely: Cluster) -> None:
    coordinator = FakeCoordinator(lonely.context, lonely.directory)
    coordinator.answers_hello = False
    await lonely.until(lambda: bool(coordinator.hellos))
    await coordinator.send(Refused("version 1, not 2"))
    with pytest.RaisesGroup(pytest.RaisesExc(ClusterRefusedUs, match="version 1, not 2"), flatten_subgroups=True):
        await lonely.running
    await coordinator.close()


async def test_garbage_on_every_socket_is_counted_and_changes_nothing(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    request, collector = await accepted(cluster)
    rng = random.Random(3)
    sent = 0
    for number in [*TYPE_NUMBERS.values(), 255]:
        for payload in (b"", b"\x90", b"\xc1", rng.randbytes(50)):
            frames = (bytes([number]), payload)
            await cluster.coordinator.send_raw(*frames)
            await cluster.coordinator.publish_raw(*frames)
            await cluster.engine.push_raw(*frames)
            sent += 3
    await cluster.engine.push_raw(b"")
    await cluster.coordinator.send_raw(b"\x14")
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4], FinishReason.STOP))
    assert await read_to_the_end(collector) == ([4], FinishReason.STOP)
    dropped = {"process": "api_server", "engine": ""}
    await cluster.until(lambda: cluster.count("malformed_messages_total", **dropped) > sent * 0.9)
    assert not cluster.running.done()


async def test_a_fault_of_ours_ends_the_client_instead_of_leaving_it_half_dead(lonely: Cluster) -> None:
    lonely.running.cancel()

    def fail(message: object, buffers: object) -> None:
        raise RuntimeError("a fault")

    receiving = asyncio.create_task(lonely.links.receive(fail, fail))  # type: ignore[arg-type]
    lonely.start_coordinator()
    with pytest.RaisesGroup(RuntimeError):
        await asyncio.wait_for(receiving, LIMIT_S)


async def test_a_damaged_card_is_dropped_and_serves_nothing(lonely: Cluster) -> None:
    coordinator = lonely.start_coordinator()
    coordinator.packed_card = coordinator.packed_card[:-20]
    dropped = {"process": "api_server", "engine": ""}
    await lonely.until(lambda: lonely.count("malformed_messages_total", **dropped) == 1)
    assert not lonely.client.ready
    assert not await asyncio.wait_for(lonely.client.models(), 0.4), "known to be none: nothing to wait for"


async def test_a_flood_of_outputs_lets_other_tasks_run(cluster: Cluster) -> None:
    request, collector = await accepted(cluster)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    strays = [EngineCoreOutput(request.request_id, 1, 0, [1]) for _ in range(50)]
    for _ in range(2_000):
        await cluster.engine.push(*strays)
    await cluster.engine.push(EngineCoreOutput(request.request_id, 0, 0, [4], FinishReason.STOP))
    counting = asyncio.create_task(count_turns())
    assert await read_to_the_end(collector) == ([4], FinishReason.STOP)
    counting.cancel()
    assert turns > 20
