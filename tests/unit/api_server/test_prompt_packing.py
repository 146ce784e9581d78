"""Packed prompts are shared between the choices of a prompt, and never between prompts."""

from api_server.prompt_packing import PromptPacker
from protocol.codec import pack_token_ids


def test_choices_of_a_prompt_share_its_bytes() -> None:
    packer, prompt = PromptPacker(), [1, 2, 3]
    assert packer.pack(prompt) == pack_token_ids([1, 2, 3])
    assert packer.pack(prompt) is packer.pack(prompt)


def test_another_prompt_is_packed_anew() -> None:
    packer = PromptPacker()
    packed = [packer.pack(prompt) for prompt in ([1], [2], [1])]
    assert packed == [pack_token_ids([1]), pack_token_ids([2]), pack_token_ids([1])]
