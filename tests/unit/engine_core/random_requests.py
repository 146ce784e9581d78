"""Drives a device with random plans: joins, leaves, preemptions, chunks, moves between slots, copies, pauses.

A small stand-in for a scheduler that does everything a plan may say as often as it can, sensible or not.
"""

import random
from collections.abc import Sequence

from engine_core.device import Admission, DecodeRow, Device, PrefillChunk, RowCopy, RowMove, Slot, StepPlan
from protocol.sampling import SamplingParams


class Request:
    """What is asked for, and how far it came."""

    def __init__(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.output: list[int] = []
        self.row = -1
        self.slot = Slot(0, 0)
        self.fed = 0
        """Tokens in its row, when all plans made have run."""
        self.coming = 0
        """Tokens sampled by plans that are not collected."""
        self.stay = 0
        """Counts its admissions: what an earlier one sampled is dropped."""

    @property
    def tokens(self) -> list[int]:
        """All that are known."""
        return [*self.prompt, *self.output]

    @property
    def length(self) -> int:
        """Of all tokens, with those that come."""
        return len(self.prompt) + len(self.output) + self.coming

    @property
    def is_planned_to_its_end(self) -> bool:
        """Whether no more token is to be asked for."""
        return len(self.output) + self.coming >= self.sampling.max_tokens


class RandomDriver:
    """Runs requests to their ends. With lookahead each plan but the first is submitted before the last is collected."""

    def __init__(self, device: Device, seed: int, rows: int, lookahead: bool = False, copies: bool = True) -> None:
        self._device = device
        self._draw = random.Random(seed)
        self._rows = rows
        self._lookahead = lookahead
        self._copies = copies
        self._running: list[Request] = []
        self._releases: list[int] = []
        self._taken: set[Slot] = set()
        self._in_flight: list[list[tuple[Request, int]]] = []
        """Who decodes in each plan that is not collected, and in which stay."""
        self.steps = 0
        self.moves = 0
        self.copied_tokens = 0

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Their outputs."""
        waiting = list(requests)
        while waiting or self._running or self._in_flight:
            self._device.submit(self._plan(waiting))
            self.steps += 1
            if len(self._in_flight) > self._lookahead or not self._running:
                self._collect()
            while self._in_flight and not (waiting or self._running):
                self._collect()
        self._device.submit(StepPlan(releases=self._take_releases(), pool_slots=[0] * len(self._device.pool_lengths)))
        self._device.collect()
        return [request.output for request in requests]

    def _collect(self) -> None:
        result = self._device.collect()
        for (request, stay), token in zip(self._in_flight.pop(0), result.token_ids, strict=True):
            if stay == request.stay:
                request.coming -= 1
                request.output.append(token)
        for request in [r for r in self._running if len(r.output) == r.sampling.max_tokens]:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        self._releases.append(request.row)
        self._taken.remove(request.slot)

    def _take_releases(self) -> list[int]:
        releases, self._releases = self._releases, []
        return releases

    def _plan(self, waiting: list[Request]) -> StepPlan:
        if self._running and self._draw.random() < 0.03:
            waiting.append(preempted := self._draw.choice(self._running))
            self._leave(preempted)
            preempted.stay, preempted.coming = preempted.stay + 1, 0
        releases = self._take_releases()
        moves = [move for request in self._running if (move := self._move(request))]
        before = list(self._running)
        admissions, copies = list[Admission](), list[RowCopy]()
        while waiting and len(self._running) < self._rows and self._draw.random() < 0.6:
            request = waiting.pop(self._draw.randrange(len(waiting)))
            admissions.append(self._admit(request))
            copies += self._copy(request, before)
        chunks, decodes = self._feeds()
        return StepPlan(
            releases=releases,
            pool_slots=self._pool_slots(),
            moves=moves,
            admissions=admissions,
            copies=copies,
            prefills=chunks,
            decodes=decodes,
        )

    def _move(self, request: Request) -> RowMove | None:
        """When its slot is full, or for no reason."""
        if request.length < self._device.pool_lengths[request.slot.pool] and self._draw.random() > 0.05:
            return None
        slot = self._free_slot(request.length + 1)
        self._taken.remove(request.slot)
        request.slot = slot
        self._taken.add(slot)
        self.moves += 1
        return RowMove(request.row, slot)

    def _free_slot(self, tokens: int) -> Slot:
        pools = [pool for pool, length in enumerate(self._device.pool_lengths) if length >= tokens]
        pool = self._draw.choice(pools[:2])
        free = [index for index in range(self._rows + 3) if Slot(pool, index) not in self._taken]
        return Slot(pool, self._draw.choice(free[:4]))

    def _admit(self, request: Request) -> Admission:
        request.row = min(set(range(self._rows)) - {other.row for other in self._running})
        request.slot = self._free_slot(request.length + 1)
        request.fed = 0
        self._taken.add(request.slot)
        self._running.append(request)
        return Admission(request.row, request.slot, request.prompt, request.output[:], request.sampling)

    def _copy(self, request: Request, donors: Sequence[Request]) -> list[RowCopy]:
        """What a row that ran before has in common with it."""
        if not (self._copies and donors):
            return []
        donor = self._draw.choice(donors)
        shared, most = 0, min(donor.fed, len(donor.tokens), len(request.tokens) - 1)
        while shared < most and donor.tokens[shared] == request.tokens[shared]:
            shared += 1
        request.fed = shared
        self.copied_tokens += shared
        return [RowCopy(donor.row, request.row, shared)] if shared else []

    def _pool_slots(self) -> list[int]:
        tops = [0] * len(self._device.pool_lengths)
        for slot in self._taken:
            tops[slot.pool] = max(tops[slot.pool], slot.index + 1)
        return [top + (self._draw.randrange(3) if top else 0) for top in tops]

    def _feeds(self) -> tuple[list[PrefillChunk], list[DecodeRow]]:
        chunks: list[PrefillChunk] = []
        decodes: list[DecodeRow] = []
        decoding: list[tuple[Request, int]] = []
        for request in self._draw.sample(self._running, len(self._running)):
            left = request.length - 1 - request.fed
            if left and len(chunks) < 3:
                count = min(left, self._draw.randint(1, 9))
                chunks.append(PrefillChunk(request.row, request.fed, request.tokens[request.fed : request.fed + count]))
                request.fed += count
            if request.fed == request.length - 1 and not request.is_planned_to_its_end and self._draw.random() < 0.9:
                decodes.append(self._decode(request))
                decoding.append((request, request.stay))
        self._in_flight.append(decoding)
        return chunks, decodes

    def _decode(self, request: Request) -> DecodeRow:
        known = request.tokens[request.fed] if request.fed < len(request.tokens) else None
        decode = DecodeRow(request.row, request.fed, known, len(request.output) + request.coming)
        request.fed += 1
        request.coming += 1
        return decode
