"""The limits of tenants, and how the coordinator holds to them."""

import msgspec
import pytest
from core_fixture import Core, FakeClient, FakeEngine, key
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator import tenant_limits
from coordinator.tenant_limits import TenantLimits
from protocol.codec import pack_token_ids
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import Accepted, EngineCoreRequest, Rejected, RejectReason, RequestEnded, TenantState
from protocol.sampling import SamplingParams
from protocol.tenants import TenantTable, key_digest, tenant_id

TEAM = TenantTable(keys=("key-1", "key-2"), tokens_per_minute=600, max_streams=3)
FIRST, SECOND = (tenant_id(key_digest(text)) for text in (b"key-1", b"key-2"))


def request(name: str, tenant: str = FIRST, prompt: int = 100, attempt: int = 0) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=100)
    return EngineCoreRequest(RequestId(name), ClientIndex(1), attempt, "m", prompt, sampling, 0.0, tenant=tenant)


def limits(table: TenantTable = TEAM) -> TenantLimits:
    return TenantLimits({"team": table}, 0.0)


def route(owner: TenantLimits, each: EngineCoreRequest, now_s: float = 0.0) -> bool:
    if owner.refusal(each, now_s) is not None:
        return False
    owner.routed(each, now_s)
    owner.check_invariants()
    return True


def test_prompt_and_most_output_are_reserved_and_all_keys_of_a_tenant_share() -> None:
    owner = limits()
    assert route(owner, request("a")) and route(owner, request("b", SECOND)) and route(owner, request("c"))
    owner.unrouted(RequestId("a"))
    refused = owner.refusal(request("d"), 0.0)
    assert refused is not None and refused.reason is RejectReason.RATE_LIMITED
    assert refused.retry_after_s == pytest.approx(20.0)
    assert refused.allowance is not None
    assert msgspec.structs.astuple(refused.allowance) == (600, 0, 60.0)


def test_what_was_not_used_comes_back() -> None:
    owner = limits()
    for name in "abc":
        assert route(owner, request(name))
        owner.unrouted(RequestId(name))
    owner.ended(ClientIndex(1), RequestId("a"), 0, 0.0)
    assert owner.refusal(request("d"), 0.0) is not None
    owner.ended(ClientIndex(1), RequestId("b"), 0, 0.0)
    assert route(owner, request("d"))
    assert owner.states() == [TenantState("team", 1, 200, 1)]


def test_only_its_own_api_server_can_end_a_reservation_and_only_once() -> None:
    owner = limits()
    assert route(owner, request("a", prompt=500))
    for client, tokens in ((2, 0), (1, 10), (1, 20)):
        owner.ended(ClientIndex(client), RequestId("a"), tokens, 0.0)
    assert owner.states() == [TenantState("team", 1, 510, 0)]


def test_streams_are_limited_and_free_again_when_they_leave_the_table() -> None:
    owner = limits(TenantTable(keys=("key-1",), max_streams=2))
    assert route(owner, request("a")) and route(owner, request("b"))
    refused = owner.refusal(request("c"), 0.0)
    assert refused is not None and refused.reason is RejectReason.RATE_LIMITED and refused.allowance is None
    owner.unrouted(RequestId("a"))
    assert route(owner, request("c"))


def test_a_later_attempt_is_not_refused_and_reserves_nothing_more() -> None:
    owner = limits()
    assert route(owner, request("a", prompt=500))
    owner.unrouted(RequestId("a"))
    assert route(owner, request("a", prompt=500, attempt=1))
    owner.ended(ClientIndex(1), RequestId("a"), 100, 0.0)
    assert owner.states() == [TenantState("team", 1, 600, 0)]


def test_a_request_without_tenant_or_of_an_unknown_one_has_no_limits() -> None:
    owner = limits()
    for number in range(50):
        assert route(owner, request(f"a{number}", "")) and route(owner, request(f"b{number}", "unknown"))
    assert owner.states() == [TenantState("team")]


def test_an_api_server_that_is_gone_has_used_what_it_reserved() -> None:
    owner = limits()
    assert route(owner, request("a"))
    owner.unrouted(RequestId("a"))
    owner.client_gone(ClientIndex(1))
    owner.ended(ClientIndex(1), RequestId("a"), 0, 0.0)
    assert owner.states() == [TenantState("team", 0, 200, 0)]


def test_reservations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_limits, "MAX_RESERVATIONS", 3)
    owner = limits(TenantTable(keys=("key-1",)))
    for number in range(9):
        assert route(owner, request(f"r{number}"))
    assert owner.states()[0].tokens_total == 6 * 200


# --- in the coordinator ---------------------------------------------------------------------------------------


def joined(core: Core) -> tuple[FakeEngine, FakeClient, FakeClient]:
    engine, first, second = FakeEngine(core), FakeClient(core), FakeClient(core, "api-1", "a2")
    engine.hello()
    first.hello()
    second.hello()
    return engine, first, second


def ask(client: FakeClient, name: str, tenant: str = FIRST, prompt: int = 10) -> Accepted | Rejected:
    wanted = msgspec.structs.replace(client.request(name, prompt), tenant=tenant)
    (answer,) = client.say(wanted, pack_token_ids(range(prompt)))
    assert isinstance(answer, Accepted | Rejected)
    return answer


def test_two_api_servers_share_one_tenants_budget() -> None:
    core = Core(tenants={"team": TenantTable(keys=("key-1",), tokens_per_minute=38)})
    engine, first, second = joined(core)
    assert isinstance(ask(first, "a"), Accepted)
    assert isinstance(ask(second, "b"), Accepted)
    refused = ask(first, "c")
    assert isinstance(refused, Rejected) and refused.reason is RejectReason.RATE_LIMITED
    assert refused.allowance is not None and refused.allowance.limit_tokens == 38
    assert isinstance(ask(second, "d", tenant=""), Accepted)
    engine.report(adds_received=3, finished=[key("b")])
    second.say(RequestEnded(RequestId("b"), 0))
    second.say(RequestEnded(RequestId("never"), 5))
    assert isinstance(ask(first, "e", prompt=2), Accepted)


def test_places_come_back_by_every_way_out() -> None:
    core = Core(tenants={"team": TenantTable(keys=("key-1",), max_streams=1)})
    engine, first, second = joined(core)
    assert isinstance(ask(first, "a"), Accepted)
    assert isinstance(ask(second, "b"), Rejected)
    engine.report(adds_received=1, finished=[key("a")])
    assert isinstance(ask(second, "b"), Accepted)
    second.abort(key("b"))
    assert isinstance(ask(first, "c"), Accepted)
    first.unreachable()
    assert isinstance(ask(second, "d"), Accepted)
    engine.unreachable()
    engine.hello()
    assert isinstance(ask(second, "e"), Accepted)


class TenantSequences(RuleBasedStateMachine):
    """Whatever happens in whatever order: tokens of those that are over add up, and nothing is left of them."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = limits()
        self.now_s = 0.0
        self.live: dict[str, int] = {}
        self.total = 0
        self.count = 0

    @rule(wait_s=st.floats(0, 20))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s

    @rule(prompt=st.integers(1, 300))
    def submit(self, prompt: int) -> None:
        name = f"r{self.count}"
        self.count += 1
        if route(self.owner, request(name, prompt=prompt), self.now_s):
            self.live[name] = prompt

    @rule(data=st.data(), output=st.integers(0, 120))
    def end(self, data: st.DataObject, output: int) -> None:
        if self.live:
            name = data.draw(st.sampled_from(sorted(self.live)))
            self.owner.unrouted(RequestId(name))
            self.owner.ended(ClientIndex(1), RequestId(name), output, self.now_s)
            self.total += self.live.pop(name) + min(output, 100)

    @invariant()
    def adds_up(self) -> None:
        self.owner.check_invariants()
        (state,) = self.owner.states()
        assert (state.streams, state.tokens_total) == (len(self.live), self.total)
        assert state.streams <= 3


TestTenantSequences = TenantSequences.TestCase
TestTenantSequences.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
