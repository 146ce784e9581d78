"""A scheduler, its checking device, and what is known of every request that was ever added: whatever happens in
whatever order, each request ends once, with the tokens that it would get alone."""

from array import array
from collections.abc import Sequence

from token_device import TokenDevice, output_alone

from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.logprobs import unpack_logprobs
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

EOS = 3
MOST_STEPS = 20_000


class World:
    """The rules call its methods; after each of them `check` may be called."""

    def __init__(self, limits: SchedulerLimits, *, lookahead: bool, stores_prefixes: bool = True) -> None:
        self.limits = limits
        self.lookahead = lookahead
        self.stores_prefixes = stores_prefixes
        self.device = TokenDevice(
            limits.kv_capacity_tokens,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            limits.pool_lengths,
            limits.checkpoint_tokens,
        )
        self.scheduler = Scheduler(limits, [EOS])
        self.in_flight = 0
        self.requests: dict[RequestKey, EngineCoreRequest] = {}
        self.tokens: dict[RequestKey, list[int]] = {}
        """Prompt, with the earlier output at its end."""
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}
        self.silenced: set[RequestKey] = set()
        """Aborted, superseded or without a client: no output may come any more."""
        self.ended: list[RequestKey] = []

    def add(self, prompt: Sequence[int], sampling: SamplingParams, priority: int = 0, client: int = 0) -> RequestKey:
        name = RequestId(f"r{len(self.requests)}")
        salt = "other salt" if len(self.requests) % 3 == 2 else ""
        request = EngineCoreRequest(
            name, ClientIndex(client), 0, "m", len(prompt), sampling, 0.0, priority=priority, cache_salt=salt
        )
        return self._add(request, list(prompt))

    def add_newer_attempt(self, key: RequestKey, resumed_tokens: int = 0) -> RequestKey:
        """Of a request that may have ended; it brings so many tokens of its output along, if there are more."""
        newest = max((k for k in self.requests if k.request_id == key.request_id), key=lambda k: k.attempt)
        self.silenced.update(k for k in self.live() if k.request_id == key.request_id)
        request, tokens = self.requests[newest], self.tokens[newest]
        prompt = tokens[: len(tokens) - request.num_output_tokens]
        output = output_alone(prompt, min(resumed_tokens, request.sampling.max_tokens - 1))
        if EOS in output and not request.sampling.ignore_eos:
            output = output[: output.index(EOS)]
        return self._add(self._attempt(request, newest.attempt + 1, len(prompt), len(output)), [*prompt, *output])

    def add_older_attempt(self, key: RequestKey) -> None:
        request = self.requests[key]
        late = self._attempt(request, -1, len(self.tokens[key]), 0)
        if late.key not in self.requests and key in self.live():
            self.silenced.add(late.key)
            self._add(late, self.tokens[key])

    def add_again(self, key: RequestKey) -> None:
        """The same one, as from a coordinator that is not sure of having sent it."""
        if key in self.live():
            self._hand_over(self.requests[key])

    def abort(self, keys: Sequence[RequestKey]) -> None:
        self.silenced.update(keys)
        self.scheduler.abort(keys)

    def lose_client(self, client: int) -> None:
        self.silenced.update(k for k in self.live() if self.requests[k].client_index == client)
        self.scheduler.drop_client(ClientIndex(client))

    @property
    def can_submit(self) -> bool:
        return self.in_flight <= self.lookahead

    def submit(self) -> bool:
        """Whether there was anything to plan."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.device.submit(plan)
            self.in_flight += 1
        elif not self.in_flight:
            assert not self.scheduler.has_requests, "nothing is planned, and nothing will change"
        return plan is not None

    def collect(self) -> None:
        self.in_flight -= 1
        self._collect(self.scheduler.update(self.device.collect()))

    def step(self) -> None:
        """As the busy loop does: with lookahead, a result is taken when the next plan is on its way."""
        submitted = self.submit() if self.can_submit else False
        if self.in_flight and (not submitted or self.in_flight > self.lookahead):
            self.collect()

    def live(self) -> list[RequestKey]:
        return [key for key, _, _ in self.scheduler.live_requests()]

    def check(self) -> None:
        self.scheduler.check_invariants()
        self.ended += self.scheduler.take_ended()

    def finish(self) -> None:
        """Steps until all have ended, and checks what each of them got."""
        for _ in range(MOST_STEPS):
            if not self.scheduler.has_work:
                break
            self.step()
            self.check()
        assert not self.scheduler.has_work, "it does not come to an end"
        self.check()
        load = self.scheduler.load()
        assert (load.running, load.waiting, load.kv_used_tokens, load.queued_prefill_tokens) == (0, 0, 0, 0)
        assert self.device.rows == {}
        assert self.stores_prefixes or not self.device.blocks
        if self.limits.checkpoint_tokens:
            assert set(self.device.checkpoints) <= set(self.device.blocks), "states without their block"
        assert sorted(self.ended, key=str) == sorted(self.requests, key=str), "not every request ended exactly once"
        for key in self.requests:
            if key not in self.silenced:
                self._check_whole(key)

    def _attempt(
        self, request: EngineCoreRequest, attempt: int, prompt_tokens: int, output_tokens: int
    ) -> EngineCoreRequest:
        return EngineCoreRequest(
            request.request_id,
            request.client_index,
            attempt,
            "m",
            prompt_tokens + output_tokens,
            request.sampling,
            0.0,
            priority=request.priority,
            cache_salt=request.cache_salt,
            num_output_tokens=output_tokens,
        )

    def _add(self, request: EngineCoreRequest, tokens: list[int]) -> RequestKey:
        self.requests[request.key] = request
        self.tokens[request.key] = tokens
        self._hand_over(request)
        return request.key

    def _hand_over(self, request: EngineCoreRequest) -> None:
        tokens = self.tokens[request.key]
        root = prefix_root("m", "", request.cache_salt)
        chain = prefix_chain(root, tokens) if self.stores_prefixes else ()
        self._collect(self.scheduler.add(request, array("I", tokens), chain))

    def _collect(self, outputs: OutputsByClient) -> None:
        for client, outs in outputs.items():
            for output in outs:
                request = self.requests[output.key]
                assert output.key not in self.silenced, "an output after the end"
                assert request.client_index == client
                before = self.outputs.setdefault(output.key, [])
                assert not before or before[-1].finish_reason is None, "an output after the last"
                if output.finish_reason is not FinishReason.ERROR:
                    expected = request.num_output_tokens + sum(len(o.token_ids) for o in before)
                    assert output.position == expected, "a gap"
                    self._check_logprobs(request, output)
                before.append(output)

    def _check_logprobs(self, request: EngineCoreRequest, output: EngineCoreOutput) -> None:
        if request.sampling.logprobs is None:
            assert output.logprobs is None
        else:
            assert output.logprobs is not None
            [logprobs] = unpack_logprobs(output.logprobs, 1)
            assert logprobs.logprob == -output.position, "of another token"

    def _check_whole(self, key: RequestKey) -> None:
        outputs, request, all_tokens = self.outputs[key], self.requests[key], self.tokens[key]
        tokens = [token for output in outputs for token in output.token_ids]
        if len(all_tokens) >= self.limits.max_model_len:
            assert (outputs[-1].finish_reason, tokens) == (FinishReason.ERROR, [])
            return
        prompt = all_tokens[: len(all_tokens) - request.num_output_tokens]
        expected = output_alone(prompt, min(request.sampling.max_tokens, self.limits.max_model_len - len(prompt)))
        if EOS in expected and not request.sampling.ignore_eos:
            expected = expected[: expected.index(EOS) + 1]
            assert outputs[-1].finish_reason is FinishReason.STOP
        else:
            assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert tokens == expected[request.num_output_tokens :]
