import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workload import (
    WORDS,
    Calibration,
    FileWorkload,
    Prompt,
    SyntheticLength,
    SyntheticWorkload,
    parse_prompts,
    probe_prompt,
)


def words_of(prompt: Prompt) -> list[str]:
    if prompt.messages is None:
        assert prompt.prompt is not None
        return prompt.prompt.split()
    return [word for message in prompt.messages for word in json.loads(bytes(message))["content"].split()]


def roles_of(prompt: Prompt) -> list[str]:
    return [json.loads(bytes(message))["role"] for message in prompt.messages or []]


@pytest.mark.parametrize("chat", [True, False])
def test_prompts_have_the_stated_words_and_are_the_same_for_the_same_seed(chat: bool) -> None:
    one, other = (SyntheticWorkload(SyntheticLength(40, 0), chat=chat, seed=3) for _ in range(2))
    assert len(words_of(one.prompt("run", 5))) == 40
    assert words_of(one.prompt("run", 5)) == words_of(other.prompt("run", 5))


def test_prompts_of_other_requests_runs_and_seeds_share_no_beginning() -> None:
    workload = SyntheticWorkload(SyntheticLength(30, 0), chat=True, seed=0)
    prompts = [workload.prompt(run, index) for run in ("a", "b") for index in range(50)]
    prompts.append(SyntheticWorkload(SyntheticLength(30, 0), chat=True, seed=1).prompt("a", 0))
    beginnings = {tuple(words_of(prompt)[:6]) for prompt in prompts}
    assert len(beginnings) == len(prompts)


def test_a_shared_prefix_is_the_system_message_and_differs_between_runs() -> None:
    workload = SyntheticWorkload(SyntheticLength(30, 20), chat=True, seed=0)
    first, second, other_run = workload.prompt("a", 0), workload.prompt("a", 1), workload.prompt("b", 0)
    assert roles_of(first) == ["system", "user"]
    assert words_of(first)[:20] == words_of(second)[:20] != words_of(other_run)[:20]
    assert words_of(first)[20:] != words_of(second)[20:]
    assert len(words_of(first)) == 30


def test_a_shared_prefix_of_a_plain_prompt_is_its_beginning() -> None:
    workload = SyntheticWorkload(SyntheticLength(30, 20), chat=False, seed=0)
    first, second = words_of(workload.prompt("a", 0)), words_of(workload.prompt("a", 1))
    assert first[:20] == second[:20]
    assert len(first) == 30


@given(st.integers(1, 3), st.integers(0, 60), st.integers(100, 5000), st.integers(0, 30))
def test_calibration_hits_the_asked_length(
    tokens_per_word: int, overhead_tokens: int, prompt_tokens: int, shared_tokens: int
) -> None:
    def tokens(words: int) -> int:
        return overhead_tokens + tokens_per_word * words

    calibration = Calibration.from_probes(tokens(len(WORDS)), tokens(2 * len(WORDS)))
    length = calibration.length(prompt_tokens, shared_tokens)
    assert abs(tokens(length.words) - prompt_tokens) <= tokens_per_word
    assert 0 <= length.shared_words < length.words
    assert abs(length.shared_words * tokens_per_word - shared_tokens) <= tokens_per_word


def test_a_prompt_shorter_than_the_template_has_one_word() -> None:
    assert Calibration(1.0, 50.0).length(10, 5) == SyntheticLength(1, 0)


def test_counts_that_do_not_grow_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens"):
        Calibration.from_probes(100, 100)


@pytest.mark.parametrize("shared", [True, False])
def test_probes_have_the_form_of_the_prompts(shared: bool) -> None:
    probe = probe_prompt(2, chat=True, shared=shared)
    workload = SyntheticWorkload(SyntheticLength(10, 5 if shared else 0), chat=True, seed=0)
    assert roles_of(probe) == roles_of(workload.prompt("a", 0))
    assert sorted(words_of(probe)) == sorted(WORDS * 2)


def test_a_prompts_file_is_taken_in_order_and_again_from_its_start() -> None:
    prompts = parse_prompts(b'{"prompt": "a"}\n\n{"prompt": "b", "max_tokens": 7, "other": 1}\n', chat=False)
    workload = FileWorkload(prompts)
    taken = [workload.prompt("run", index) for index in range(3)]
    assert [prompt.prompt for prompt in taken] == ["a", "b", "a"]
    assert taken[1].max_tokens == 7


def test_a_plain_prompt_becomes_a_user_message_and_messages_pass_unchanged() -> None:
    line = b'{"messages": [{"role": "tool", "content": null, "tool_call_id": "x"}]}'
    plain, chat = parse_prompts(b'{"prompt": "hi", "max_tokens": 3}\n' + line, chat=True)
    assert (roles_of(plain), words_of(plain), plain.max_tokens) == (["user"], ["hi"], 3)
    assert json.loads(bytes((chat.messages or [])[0])) == {"role": "tool", "content": None, "tool_call_id": "x"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "no prompts"),
        (b'{"prompt": "a"}\nnonsense', "line 2"),
        (b"{}", "line 1"),
        (b'{"prompt": "a", "messages": []}', "line 1"),
        (b'{"messages": []}', "completions"),
        (b'{"prompt": "a", "max_tokens": 0}', "line 1"),
    ],
)
def test_a_bad_prompts_file_is_refused(text: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_prompts(text, chat=False)
