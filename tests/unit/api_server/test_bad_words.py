"""bad_words become the sequences that the tokenizer writes them with."""

from http_fakes import ids, tiny_model

from api_server.bad_words import bad_words_token_ids


def test_a_word_is_banned_at_the_start_and_after_a_space() -> None:
    assert bad_words_token_ids(["fox"], tiny_model()) == (tuple(ids("fox")), tuple(ids(" fox")))


def test_leading_spaces_make_no_difference_and_nothing_is_there_twice() -> None:
    assert bad_words_token_ids([" fox", "fox"], tiny_model()) == bad_words_token_ids(["fox"], tiny_model())


def test_no_words_are_no_sequences() -> None:
    assert bad_words_token_ids([], tiny_model()) == ()
