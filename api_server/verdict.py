"""Whether a generation that has lost its engine core goes on, and what is to be said if not."""

import msgspec

from api_server.live_generation import LiveGeneration

POISON_AFTER_FAULTS = 3
"""Engine cores that died by themselves (a step raised, crashed or hung), with no new token of the generation between.
The coordinator sees to it that at the last one it ran without another suspect beside it (docs/design.md, section 4)."""
POISON_AFTER_DEATHS = 8
"""The same of whatever cause: that one was killed from outside, froze, or vanished with its host is hardly a request's
doing, but the kernel, too, kills from outside, when a request takes all memory."""
MAX_ATTEMPTS = 64
"""A generation that was resumed so often, for whatever reasons, is given up."""


class GivenUp(msgspec.Struct, frozen=True):
    """It is not to be tried again."""

    message: str
    may_be_sent_again: bool
    """By its caller."""


class OnlyEndMissing(msgspec.Struct, frozen=True):
    """All tokens are there that were asked for."""


class GoesOn(msgspec.Struct, frozen=True):
    """As another attempt."""


Verdict = GivenUp | OnlyEndMissing | GoesOn


def verdict(generation: LiveGeneration) -> Verdict:
    """What becomes of a generation whose engine core, or part of whose output, is lost."""
    request_id = generation.submit.request_id
    if generation.is_whole:
        return OnlyEndMissing()
    if generation.faults_in_a_row >= POISON_AFTER_FAULTS or generation.deaths_in_a_row >= POISON_AFTER_DEATHS:
        deaths = generation.deaths_in_a_row
        text = f"request {request_id} was running when {deaths} engine cores died one after another"
        return GivenUp(text, may_be_sent_again=False)
    if generation.attempt + 1 >= MAX_ATTEMPTS:
        return GivenUp(f"request {request_id} lost {MAX_ATTEMPTS} engine cores", may_be_sent_again=True)
    return GoesOn()
