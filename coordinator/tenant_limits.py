"""The limits of tenants: tokens per minute and generations at once, the same whichever API server is asked.

A request reserves its prompt and the most that it may generate when it gets an engine core. What it did not use comes
back when its API server says that it is over (RequestEnded): only there all ends meet, stop strings and callers that
leave included. The place among the generations at once is free again when the request leaves the request table.
An API server that dies says nothing: what its requests had reserved counts as used. A restarted coordinator starts
with full buckets and counts no stream that runs already.
"""

from collections.abc import Mapping

import msgspec

from coordinator.routing import Refusal
from coordinator.token_bucket import TokenBucket
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest, RejectReason, TenantState, TokenAllowance
from protocol.tenants import TenantTable, tenant_id

MAX_RESERVATIONS = 65_536
"""Reservations kept; at the limit the oldest counts as used. An API server has 16,384 generations at most."""
RETRY_AFTER_STREAM_S = 1.0
"""Retry-After for one generation too many: nobody knows when one of the others ends."""


class _Tenant:
    """One tenant's state."""

    def __init__(self, name: str, table: TenantTable, now_s: float) -> None:
        self.name = name
        self.max_streams = table.max_streams
        self.tokens_per_minute = table.tokens_per_minute
        self.bucket = None if table.tokens_per_minute is None else TokenBucket(table.tokens_per_minute, now_s)
        self.streams: set[RequestId] = set()
        self.tokens_total = 0
        self.rejected_total = 0


class _Reservation(msgspec.Struct, frozen=True, gc=False):
    tenant: str
    """Its id."""
    client_index: ClientIndex
    num_prompt_tokens: int
    num_tokens: int
    """Reserved in all."""


class TenantLimits:
    """Owner of what each tenant has asked for."""

    def __init__(self, tables: Mapping[str, TenantTable], now_s: float) -> None:
        """`now_s` is the clock of every other call, which only goes forward."""
        self._tenants: dict[str, _Tenant] = {}
        """By id: several keys may be one tenant's."""
        self._names = {name: _Tenant(name, table, now_s) for name, table in tables.items()}
        for name, table in tables.items():
            self._tenants |= {tenant_id(digest): self._names[name] for digest in table.digests}
        self._reservations: dict[RequestId, _Reservation] = {}
        self._routed: dict[RequestId, _Tenant] = {}

    def refusal(self, request: EngineCoreRequest, now_s: float) -> Refusal | None:
        """Why the request's tenant must wait; None when it need not, or for a request that was let in before."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None or request.attempt > 0 or request.request_id in self._reservations:
            return None
        if tenant.max_streams is not None and len(tenant.streams) >= tenant.max_streams:
            tenant.rejected_total += 1
            text = f"tenant {tenant.name} has {len(tenant.streams)} generations running, the limit"
            return Refusal(RejectReason.RATE_LIMITED, text, RETRY_AFTER_STREAM_S)
        return self._refusal_by_tokens(tenant, _wanted_tokens(request), now_s)

    def _refusal_by_tokens(self, tenant: _Tenant, wanted: int, now_s: float) -> Refusal | None:
        if tenant.bucket is None or tenant.tokens_per_minute is None:
            return None
        missing_s = tenant.bucket.missing_for_s(wanted, now_s)
        if missing_s == 0.0:
            return None
        tenant.rejected_total += 1
        text = f"{wanted} tokens (prompt and max_tokens) are more than tenant {tenant.name} may have now"
        allowance = TokenAllowance(
            tenant.tokens_per_minute, tenant.bucket.remaining(now_s), tenant.bucket.full_in_s(now_s)
        )
        return Refusal(RejectReason.RATE_LIMITED, text, missing_s, allowance)

    def routed(self, request: EngineCoreRequest, now_s: float) -> None:
        """The request has got an engine core: it reserves its tokens, once for all its attempts."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            return
        tenant.streams.add(request.request_id)
        self._routed[request.request_id] = tenant
        if request.request_id not in self._reservations:
            wanted = _wanted_tokens(request)
            if tenant.bucket is not None:
                tenant.bucket.take(wanted, now_s)
            prompt = request.num_prompt_tokens - request.num_output_tokens
            self._reservations[request.request_id] = _Reservation(request.tenant, request.client_index, prompt, wanted)
            if len(self._reservations) > MAX_RESERVATIONS:
                self._use_up(next(iter(self._reservations)))

    def unrouted(self, request_id: RequestId) -> None:
        """The request has left the request table, for whatever reason."""
        tenant = self._routed.pop(request_id, None)
        if tenant is not None:
            tenant.streams.discard(request_id)

    def ended(self, client_index: ClientIndex, request_id: RequestId, num_output_tokens: int, now_s: float) -> None:
        """The request's API server says that it is over: what it did not use comes back. Unknown ones are skipped."""
        reservation = self._reservations.get(request_id)
        if reservation is None or reservation.client_index != client_index:
            return
        del self._reservations[request_id]
        used = min(reservation.num_prompt_tokens + max(num_output_tokens, 0), reservation.num_tokens)
        tenant = self._tenants[reservation.tenant]
        tenant.tokens_total += used
        if tenant.bucket is not None:
            tenant.bucket.give_back(reservation.num_tokens - used, now_s)

    def client_gone(self, client_index: ClientIndex) -> None:
        """An API server is gone, and nobody will say what its requests have used."""
        for request_id in [each for each, held in self._reservations.items() if held.client_index == client_index]:
            self._use_up(request_id)

    def _use_up(self, request_id: RequestId) -> None:
        reservation = self._reservations.pop(request_id)
        self._tenants[reservation.tenant].tokens_total += reservation.num_tokens

    def states(self) -> list[TenantState]:
        """What is published."""
        return [
            TenantState(tenant.name, len(tenant.streams), tenant.tokens_total, tenant.rejected_total)
            for tenant in self._names.values()
        ]

    def check_invariants(self) -> None:
        """Raises AssertionError when tables disagree or a limit is broken."""
        assert len(self._reservations) <= MAX_RESERVATIONS
        assert sum(len(tenant.streams) for tenant in self._names.values()) == len(self._routed)
        assert all(request_id in tenant.streams for request_id, tenant in self._routed.items())
        for tenant in self._names.values():
            if tenant.bucket is not None:
                tenant.bucket.check_invariants()


def _wanted_tokens(request: EngineCoreRequest) -> int:
    """Prompt and output at most; what it has generated in an earlier attempt is part of both numbers."""
    return request.num_prompt_tokens - request.num_output_tokens + request.sampling.max_tokens
