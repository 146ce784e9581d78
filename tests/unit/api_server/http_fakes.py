"""What the HTTP tests share: small real tokenizers, a served model, and a backend that plays scripts."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from api_server.app import create_app
from api_server.config import ApiServerConfig
from api_server.generation_backend import (
    AbortCause,
    Collector,
    GenerationFailed,
    NoModel,
    TokenDelta,
    UnknownModel,
)
from api_server.placement import Placement
from api_server.served_model import ServedModel
from api_server.uploads import Uploads
from protocol.card import GenerationDefaults, ModelCard
from protocol.grammar import GrammarSpec
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "hello there, how are you today?", "one two three four five"]
CONTEXT = 200

Step = TokenDelta | GenerationFailed
Script = Callable[[int, Sequence[int], SamplingParams], list[Step]]


@functools.cache
def byte_level_json() -> str:
    """A byte-level BPE with 256 bytes, a few merges and ChatML's special tokens (ids 0 to 2)."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@functools.cache
def byte_fallback_json() -> str:
    """A SentencePiece-like vocabulary: words with a leading marker, letters, and byte tokens for all else."""
    pieces = [chr(letter) for letter in range(0x20, 0x7F)] + ["\u2581", "\u2581the", "\u2581fox", "lo", "hel", "你"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {name: index for index, name in enumerate(names)}
    merges = [("\u2581", "the"), ("\u2581", "fox")]
    for left, right in [("t", "h"), ("th", "e"), ("f", "o"), ("fo", "x")]:
        vocab.setdefault(left + right, len(vocab))
        merges.insert(0, (left, right))
    merges.sort(key=lambda pair: vocab[pair[0] + pair[1]], reverse=True)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


def make_card(**changes: Any) -> ModelCard:
    """A card of the byte-level tokenizer; end-of-sequence is <|im_end|>."""
    card = ModelCard(
        name="tiny",
        max_model_len=CONTEXT,
        vocab_size=340,
        tokenizer_json=byte_level_json(),
        eos_token_ids=(2,),
        chat_template=CHATML,
        defaults=GenerationDefaults(),
        created=1_700_000_000,
    )
    return msgspec.structs.replace(card, **changes)


class FakeCollector:
    """Plays one script, then stays silent."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = list(steps)
        self.waiting = asyncio.Event()
        """Set once somebody waits for what never comes."""

    @property
    def steps_left(self) -> int:
        """How much of the script was not read."""
        return len(self._steps)

    async def get(self) -> TokenDelta:
        await asyncio.sleep(0)
        if not self._steps:
            self.waiting.set()
            await asyncio.Event().wait()
        step = self._steps.pop(0)
        if isinstance(step, GenerationFailed):
            raise step
        return step


class FakeBackend:
    """Accepts everything, unless told otherwise, and records it."""

    def __init__(self, script: Script, models: Sequence[ServedModel] | None = None) -> None:
        self._models = {model.name: model for model in models if model} if models is not None else {}
        self._script = script
        self.ready = True
        self.progressing = True
        self.draining = False
        self.taking = True
        self.rejections: dict[int, Exception] = {}
        """Submission number (from 0) to what it raises."""
        self.submissions: list[tuple[list[int], SamplingParams, int]] = []
        self.cache_salts: list[str] = []
        self.placements: list[Placement] = []
        self.deadlines_s: list[float] = []
        self.tenants: list[str] = []
        self.grammars: list[GrammarSpec | None] = []
        self.collectors: list[FakeCollector] = []
        self.aborts: list[tuple[list[int], AbortCause]] = []
        """Submission numbers and cause of each call of abort."""
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until submissions or aborts have made the condition true."""
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def model(self, name: str | None) -> ServedModel:
        if not self._models:
            raise NoModel("no model is served yet")
        if name is None:
            return next(iter(self._models.values()))
        if name not in self._models:
            raise UnknownModel(f"the model {name[:100]!r} does not exist")
        return self._models[name]

    async def models(self) -> list[ServedModel]:
        return list(self._models.values())

    async def submit(
        self,
        model: ServedModel,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int,
        cache_salt: str,
        request_prefix: str,
        placement: Placement,
        deadline_s: float = 0.0,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> FakeCollector:
        number = len(self.submissions)
        self.deadlines_s.append(deadline_s)
        self.tenants.append(tenant)
        self.grammars.append(grammar)
        self.submissions.append((list(prompt_ids), sampling, priority))
        self.cache_salts.append(cache_salt)
        self.placements.append(placement)
        collector = FakeCollector(self._script(number, prompt_ids, sampling))
        self.collectors.append(collector)
        self._tell()
        await asyncio.sleep(0)
        if number in self.rejections:
            raise self.rejections[number]
        return collector

    def abort(self, collectors: Sequence[Collector], cause: AbortCause) -> None:
        numbers = [self.collectors.index(collector) for collector in collectors if isinstance(collector, FakeCollector)]
        self.aborts.append((numbers, cause))
        self._tell()


class FakeMetrics:
    """Records what the routes report."""

    def __init__(self) -> None:
        self.responses: list[tuple[str, int]] = []
        self.in_flight = 0
        self.most_in_flight = 0

    def exposition(self) -> tuple[bytes, str]:
        return b"# a comment", "text/plain; version=0.0.4"

    def http_in_flight_changed(self, difference: int) -> None:
        self.in_flight += difference
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def observe_http(self, route: str, status: int) -> None:
        self.responses.append((route, status))


@functools.cache
def tiny_model() -> ServedModel:
    """The served model of most tests."""
    return ServedModel(make_card(), "hash")


def ids(text: str) -> list[int]:
    """Token ids of a text in the byte-level tokenizer."""
    return tiny_model().tokenizer.encode(text, add_special_tokens=False)


def says(text: str, finish: FinishReason = FinishReason.STOP, per_delta: int = 1) -> Script:
    """A script for every generation: this text, `per_delta` tokens at a time, then its end."""
    token_ids = ids(text) + ([2] if finish is FinishReason.STOP else [])

    def script(number: int, prompt_ids: Sequence[int], sampling: SamplingParams) -> list[Step]:
        pieces = [token_ids[i : i + per_delta] for i in range(0, len(token_ids), per_delta)]
        last = len(pieces) - 1
        return [TokenDelta(piece, finish if index == last else None) for index, piece in enumerate(pieces)]

    return script


class Server:
    """The application over a fake backend, with an HTTP client in process."""

    def __init__(self, script: Script | None = None, model: ServedModel | None = None, **config: Any) -> None:
        self.backend = FakeBackend(script or says("hello there"), [model or tiny_model()])
        self.metrics = FakeMetrics()
        settings = ApiServerConfig(
            clients_address="ipc:///c", cluster_address="ipc:///s", output_address="ipc:///o", **config
        )
        self.uploads = Uploads(settings.max_body_bytes)
        self.app = create_app(self.backend, self.metrics, self.uploads, settings)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server")

    async def chat(self, **fields: Any) -> httpx.Response:
        """POST /v1/chat/completions with one user message unless given otherwise."""
        return await self.client.post("/v1/chat/completions", json={"messages": [user("hi")], **fields})

    async def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        return await self.client.post("/v1/completions", json={"prompt": "hi", **fields})


def user(content: Any) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": content}


def events(response: httpx.Response) -> list[Any]:
    """The decoded events of a streamed response; the last is "[DONE]" where the stream succeeded."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else msgspec.json.decode(text) for text in data]
