"""Identifiers are fresh and have the promised form."""

import re

from protocol.identifiers import new_incarnation, new_request_id


def test_incarnations_are_sixteen_hexadecimal_digits_and_differ() -> None:
    incarnations = {new_incarnation() for _ in range(100)}
    assert len(incarnations) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in incarnations)


def test_request_ids_carry_their_prefix_and_differ() -> None:
    request_ids = {new_request_id("chatcmpl") for _ in range(100)}
    assert len(request_ids) == 100
    assert all(re.fullmatch("chatcmpl-[0-9a-f]{24}", each) for each in request_ids)
