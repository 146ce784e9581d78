"""What requests say: synthetic prompts of a stated length, or prompts from a file.

Synthetic prompts are random common words. Prompts of different servers, runs and indices differ from their first words
on, so that no prefix cache helps unless a shared prefix is asked for; the seed fixes them all. (Two addresses may lead
to the same cache: with the same prompts a server compared with itself came out 3 times faster than itself in TTFT.)
No tokenizer is needed: the server's own count for two probes gives the tokens per word and the tokens that its chat
template adds.
"""

import random
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

_WORD_TEXT = """
able about above across after again air all along also always animal answer apple area arm army art ask away
baby back ball bank base bed bird black blood blue board boat body book born both bottom box boy bread bring
brother brown building business call came car care cat cause center child city class clean clear close cold
color come common corn country course cover cross cut dance dark day deep desert dog door down draw dream dress
drive dry during early earth east easy edge egg end energy engine even evening every eye face fact family farm
fast father field fire fish floor flower food foot force forest form free friend front fruit game garden girl
glass gold good grass great green ground group grow half hand happy hard head heart heat heavy help high hill
"""
WORDS = _WORD_TEXT.split()
"""Short words, since those are single tokens in most vocabularies."""


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one request asks; either `messages` or `prompt` is set. Also the form of a line in a prompts file."""

    messages: list[msgspec.Raw] | None = None
    prompt: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Overrides the general limit."""


class Workload(Protocol):
    """Where prompts come from."""

    def prompt(self, run: str, index: int) -> Prompt:
        """Of request `index` of the run with this name."""


class SyntheticLength(msgspec.Struct, frozen=True):
    """Length of synthetic prompts in words."""

    words: int
    """All of them, at least 1."""
    shared_words: int
    """That all prompts of a run begin with, less than `words`."""


class Calibration(msgspec.Struct, frozen=True):
    """How words become prompt tokens at one server: tokens = overhead + tokens_per_word * words."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    @classmethod
    def from_probes(cls, once_tokens: int, twice_tokens: int) -> "Calibration":
        """From the prompt tokens of all WORDS said once and twice. Raises ValueError for counts that cannot be."""
        if twice_tokens <= once_tokens:
            raise ValueError(f"the server counts {twice_tokens} tokens for twice the words that have {once_tokens}")
        tokens_per_word = (twice_tokens - once_tokens) / len(WORDS)
        return cls(tokens_per_word, max(0.0, once_tokens - tokens_per_word * len(WORDS)))

    def length(self, prompt_tokens: int, shared_prefix_tokens: int) -> SyntheticLength:
        """Words for a prompt of so many tokens, of which the first `shared_prefix_tokens` are shared."""
        words = max(1, round((prompt_tokens - self.overhead_tokens) / self.tokens_per_word))
        return SyntheticLength(words, min(words - 1, round(shared_prefix_tokens / self.tokens_per_word)))


class SyntheticWorkload:
    """Random words; a shared prefix becomes the system message of a chat."""

    def __init__(self, length: SyntheticLength, *, chat: bool, seed: int) -> None:
        self._length = length
        self._chat = chat
        self._seed = seed

    def prompt(self, run: str, index: int) -> Prompt:
        """See Workload. The same arguments give the same prompt."""
        shared = self._words(f"{run}:shared", self._length.shared_words)
        own = self._words(f"{run}:{index}", self._length.words - self._length.shared_words)
        return synthetic_prompt(shared, own, chat=self._chat)

    def _words(self, name: str, count: int) -> list[str]:
        return random.Random(f"{self._seed}:{name}").choices(WORDS, k=count)


def probe_prompt(repeats: int, *, chat: bool, shared: bool) -> Prompt:
    """All WORDS `repeats` times, in the same form (with a system message or not) as the prompts to come."""
    words = WORDS * repeats
    cut = len(words) // 2 if shared else 0
    return synthetic_prompt(words[:cut], words[cut:], chat=chat)


def synthetic_prompt(shared: list[str], own: list[str], *, chat: bool) -> Prompt:
    """These words as a chat or as a plain prompt."""
    if not chat:
        return Prompt(prompt=" ".join((*shared, *own)))
    system = [_message("system", " ".join(shared))] if shared else []
    return Prompt(messages=[*system, _message("user", " ".join(own))])


class FileWorkload:
    """Prompts of a file in its order, again from its start after its end."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self._prompts = prompts

    def prompt(self, run: str, index: int) -> Prompt:
        """See Workload."""
        return self._prompts[index % len(self._prompts)]


def parse_prompts(text: bytes, *, chat: bool) -> list[Prompt]:
    """Prompts in JSONL form; a plain prompt becomes a user message of a chat.

    Raises ValueError, naming the line, for one that is not such a prompt, and for a file without any.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError("no prompts in the file")
    return [_parse_line(number, line, chat) for number, line in lines]


def _parse_line(number: int, line: bytes, chat: bool) -> Prompt:
    try:
        prompt = msgspec.json.decode(line, type=Prompt)
    except msgspec.MsgspecError as error:
        raise ValueError(f"line {number}: {error}") from error
    if (prompt.messages is None) == (prompt.prompt is None):
        raise ValueError(f"line {number}: needs either messages or prompt")
    if not chat and prompt.prompt is None:
        raise ValueError(f"line {number}: messages cannot be sent to the completions API")
    if chat and prompt.prompt is not None:
        return Prompt(messages=[_message("user", prompt.prompt)], max_tokens=prompt.max_tokens)
    return prompt


def _message(role: str, content: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"role": role, "content": content}))
