"""The requests that have not ended, and what is counted of those that have."""

from collections.abc import Iterable, Iterator

from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey

OutputsByClient = dict[ClientIndex, list[EngineCoreOutput]]


class RequestTable:
    """Owner of the sequences by request id, and of the list of ends that were not told yet."""

    def __init__(self) -> None:
        self._by_id: dict[RequestId, Sequence] = {}
        self._ended: list[RequestKey] = []
        self._finished_total = dict.fromkeys((reason.name.lower() for reason in FinishReason), 0)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    @property
    def finished_total(self) -> dict[str, int]:
        """Requests ended, by finish reason in lower case."""
        return dict(self._finished_total)

    def known(self, request: EngineCoreRequest) -> Sequence | None:
        """The sequence of any attempt of this request."""
        return self._by_id.get(request.request_id)

    def matching(self, keys: Iterable[RequestKey]) -> list[Sequence]:
        """Those of these requests that are in just these attempts."""
        found = (self._by_id.get(key.request_id) for key in dict.fromkeys(keys))
        return [s for s, key in zip(found, dict.fromkeys(keys), strict=True) if s is not None and s.key == key]

    def of_client(self, client_index: ClientIndex) -> list[Sequence]:
        """All of this client."""
        return [s for s in self if s.request.client_index == client_index]

    def add(self, sequence: Sequence) -> None:
        """No attempt of its request may be there."""
        assert sequence.request.request_id not in self._by_id, sequence
        self._by_id[sequence.request.request_id] = sequence

    def remove(self, sequence: Sequence, reason: FinishReason) -> None:
        """It has ended."""
        del self._by_id[sequence.request.request_id]
        self.count_end(sequence.key, reason)

    def count_end(self, key: RequestKey, reason: FinishReason) -> None:
        """A request has ended, which was not in the table or is not any more."""
        self._ended.append(key)
        self._finished_total[reason.name.lower()] += 1

    def note_superseded(self, key: RequestKey) -> None:
        """An attempt came after a newer one: nothing comes of it."""
        self._ended.append(key)

    def take_ended(self) -> list[RequestKey]:
        """Requests that ended, for whatever reason, since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def check_invariants(self) -> None:
        """Raises AssertionError when the table contradicts itself."""
        assert all(request_id == s.request.request_id for request_id, s in self._by_id.items())


def put_output(outputs: OutputsByClient, request: EngineCoreRequest, output: EngineCoreOutput) -> None:
    """Adds what the request's client is to be told."""
    outputs.setdefault(request.client_index, []).append(output)


def joined(first: OutputsByClient, second: OutputsByClient) -> OutputsByClient:
    """The outputs of both, those of `first` first."""
    return {client: first.get(client, []) + second.get(client, []) for client in first | second}


def last_word(
    request: EngineCoreRequest, position: int, reason: FinishReason, error: str | None, error_field: str = ""
) -> EngineCoreOutput:
    """An end without a token. `error_field` is what of the caller's request is to blame, if anything is."""
    return EngineCoreOutput(
        request.request_id, request.attempt, position, finish_reason=reason, error=error, error_field=error_field
    )
