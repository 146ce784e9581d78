"""One generation on its way through the cluster, as the client core remembers it."""

import enum
from collections import deque

from api_server.client_events import Submit
from protocol.codec import TOKEN_ID_BYTES
from protocol.identifiers import ClientIndex, Incarnation
from protocol.messages import EngineCoreRequest, EngineRun, RequestKey


class GenerationState(enum.Enum):
    """Where a generation stands between us and the coordinator."""

    WAITING = enum.auto()
    """To be sent as soon as a coordinator has welcomed us."""
    SUBMITTED = enum.auto()
    """Sent on the present connection; the coordinator has not answered."""
    ACCEPTED = enum.auto()
    """The coordinator gave it to an engine core; no token has come."""
    STREAMING = enum.auto()
    """Accepted, and tokens have come."""
    ENDED = enum.auto()


_MOVES = {
    GenerationState.WAITING: {GenerationState.SUBMITTED, GenerationState.ENDED},
    # SUBMITTED again: the coordinator forgot us and welcomed us anew on the same connection.
    # STREAMING at once: outputs have their own socket and may overtake the answer.
    GenerationState.SUBMITTED: {
        GenerationState.WAITING,
        GenerationState.SUBMITTED,
        GenerationState.ACCEPTED,
        GenerationState.STREAMING,
        GenerationState.ENDED,
    },
    GenerationState.ACCEPTED: {GenerationState.STREAMING, GenerationState.ENDED},
    GenerationState.STREAMING: {GenerationState.ENDED},
    GenerationState.ENDED: set(),
}

HISTORY_LENGTH = 16


class IllegalMove(AssertionError):
    """A generation was to go where it cannot go: a fault of this process."""


class LiveGeneration:
    """Owned by the client core; nobody else changes it."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.attempt = 0
        self.state = GenerationState.WAITING
        self.engine: EngineRun | None = None
        """The engine core that has it: by the coordinator's word, or, before that, the first that sent outputs."""
        self.num_received = 0
        """Output tokens delivered; the position of the next one."""
        self.was_sent = False
        self.is_admitted = False
        """Whether Admit went out."""
        self._history: deque[GenerationState] = deque([self.state], maxlen=HISTORY_LENGTH)

    @property
    def key(self) -> RequestKey:
        """Request id and present attempt."""
        return RequestKey(self.submit.request_id, self.attempt)

    @property
    def incarnation(self) -> Incarnation | None:
        """The engine core's."""
        return None if self.engine is None else self.engine.incarnation

    @property
    def is_acknowledged(self) -> bool:
        """Whether the coordinator has answered."""
        return self.state in (GenerationState.ACCEPTED, GenerationState.STREAMING)

    def move(self, state: GenerationState) -> None:
        """Changes the state. Raises IllegalMove, with the recent history."""
        if state not in _MOVES[self.state]:
            history = " ".join(past.name for past in self._history)
            raise IllegalMove(f"{self.key}: {history} -> {state.name}")
        self.state = state
        self._history.append(state)

    def request(self, client_index: ClientIndex) -> EngineCoreRequest:
        """The message that submits it."""
        submit = self.submit
        return EngineCoreRequest(
            request_id=submit.request_id,
            client_index=client_index,
            attempt=self.attempt,
            model=submit.model,
            num_prompt_tokens=len(submit.prompt) // TOKEN_ID_BYTES,
            sampling=submit.sampling,
            arrival_time_s=submit.arrival_time_s,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            session_key=submit.placement.session_key,
            engine_rank=submit.placement.engine_rank,
        )

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """What goes with that message: the prompt, and the keys of its blocks if it has any."""
        prompt, keys = self.submit.prompt, self.submit.placement.block_keys
        return (prompt, keys) if keys else (prompt,)

    def check_invariants(self) -> None:
        """For tests."""
        assert self.state is not GenerationState.ENDED
        assert self.is_admitted or not self.num_received
        assert self.is_admitted or not self.is_acknowledged
        assert self.engine is not None or not self.is_acknowledged
        assert self.num_received <= self.submit.sampling.max_tokens
