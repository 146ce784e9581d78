"""One generation on its way through the cluster, as the client core remembers it."""

import enum
import math
from array import array
from collections import deque
from collections.abc import Sequence

from api_server.client_events import Submit
from protocol.codec import TOKEN_ID_BYTES, pack_token_ids
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
    # WAITING: it has lost its engine core and is to go on elsewhere.
    GenerationState.ACCEPTED: {GenerationState.STREAMING, GenerationState.WAITING, GenerationState.ENDED},
    GenerationState.STREAMING: {GenerationState.WAITING, GenerationState.ENDED},
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
        self._received = array("I")
        self._num_resubmitted = 0
        """So many of the received tokens go with the present attempt, as the end of its prompt."""
        self.deaths_in_a_row = 0
        """Engine cores that died while they had it, since its last token."""
        self.faults_in_a_row = 0
        """Those of them that died by themselves."""
        self._unexplained: list[Incarnation] = []
        """Those of them of which that is not known."""
        self.resume_deadline_s = math.inf
        """Until when another engine core must have taken it over; infinity while one has it."""
        self.was_sent = False
        self.is_admitted = False
        """Whether Admit went out."""
        self._history: deque[GenerationState] = deque([self.state], maxlen=HISTORY_LENGTH)

    @property
    def key(self) -> RequestKey:
        """Request id and present attempt."""
        return RequestKey(self.submit.request_id, self.attempt)

    @property
    def num_received(self) -> int:
        """Output tokens delivered; the position of the next one."""
        return len(self._received)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt itself."""
        return len(self.submit.prompt) // TOKEN_ID_BYTES

    @property
    def is_whole(self) -> bool:
        """Whether all tokens that were asked for are there."""
        return self.num_received >= self.submit.sampling.max_tokens

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

    def receive(self, token_ids: Sequence[int]) -> bool:
        """Its next tokens have come; returns whether they clear it of the deaths of engine cores."""
        self._received.extend(token_ids)
        is_cleared = bool(token_ids) and self.deaths_in_a_row > 0
        if is_cleared:
            self.deaths_in_a_row = self.faults_in_a_row = 0
            self._unexplained.clear()
        return is_cleared

    def engine_died(self, incarnation: Incarnation, by_fault: bool) -> None:
        """The engine core that had it is gone."""
        self.deaths_in_a_row += 1
        if by_fault:
            self.faults_in_a_row += 1
        else:
            self._unexplained.append(incarnation)

    def died_by_fault(self, incarnation: Incarnation) -> bool:
        """This engine core died by itself, as is known only now; returns whether it had it, and no token came since."""
        is_news = incarnation in self._unexplained
        if is_news:
            self._unexplained.remove(incarnation)
            self.faults_in_a_row += 1
        return is_news

    def taken_over(self) -> None:
        """An engine core has it."""
        self.resume_deadline_s = math.inf

    def next_attempt(self, deadline_s: float) -> None:
        """Its engine core, or part of what that sent, is lost: it is to go on behind the tokens that are there.

        `deadline_s` counts unless an earlier one does.
        """
        if self.state is not GenerationState.WAITING:
            self.move(GenerationState.WAITING)
        self.attempt += 1
        self.engine = None
        self._num_resubmitted = self.num_received
        self.resume_deadline_s = min(self.resume_deadline_s, deadline_s)

    def prompt(self) -> bytes:
        """What the present attempt is computed from, packed: the prompt, and what earlier attempts put out."""
        if not self._num_resubmitted:
            return self.submit.prompt
        return self.submit.prompt + pack_token_ids(self._received[: self._num_resubmitted])

    def request(self, client_index: ClientIndex) -> EngineCoreRequest:
        """The message that submits it; `prompt` goes with it."""
        submit = self.submit
        return EngineCoreRequest(
            request_id=submit.request_id,
            client_index=client_index,
            attempt=self.attempt,
            model=submit.model,
            num_prompt_tokens=self.num_prompt_tokens + self._num_resubmitted,
            sampling=submit.sampling,
            arrival_time_s=submit.arrival_time_s,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            session_key=submit.placement.session_key,
            engine_rank=submit.placement.engine_rank,
            num_output_tokens=self._num_resubmitted,
            deaths=self.deaths_in_a_row,
            deadline_s=submit.deadline_s,
            tenant=submit.tenant,
            grammar=submit.grammar,
        )

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """What goes with that message: the prompt, and the keys of its blocks if it has any.

        Of earlier output there are none: the coordinator need not know the keys of all blocks.
        """
        prompt, keys = self.prompt(), self.submit.placement.block_keys
        return (prompt, keys) if keys else (prompt,)

    def check_invariants(self) -> None:
        """For tests."""
        assert self.state is not GenerationState.ENDED
        assert self.is_admitted or not self.num_received
        assert self.is_admitted or not self.is_acknowledged
        assert self.engine is not None or not self.is_acknowledged
        assert self.deaths_in_a_row == self.faults_in_a_row + len(self._unexplained)
        assert self._num_resubmitted <= self.num_received <= self.submit.sampling.max_tokens
        assert self.resume_deadline_s == math.inf or not self.is_acknowledged
