"""The file of tenants."""

import hashlib
from pathlib import Path

import pytest

from protocol import tenants
from protocol.tenants import BadTenants, key_digest, load_tenants, tenant_id


def load(tmp_path: Path, text: str) -> dict[str, tenants.TenantTable]:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    return load_tenants(path)


def test_keys_as_they_are_or_as_digests(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-2").hexdigest()
    loaded = load(
        tmp_path,
        f'[a]\nkeys = ["sk-1"]\ntokens_per_minute = 10\n[b]\nkey_sha256 = ["{digest}"]\nmax_streams = 2\n',
    )
    assert loaded["a"].digests == [key_digest(b"sk-1")]
    assert loaded["b"].digests == [key_digest(b"sk-2")]
    assert (loaded["a"].tokens_per_minute, loaded["a"].max_streams) == (10, None)


def test_the_id_of_a_tenant_does_not_hold_the_key() -> None:
    assert tenant_id(key_digest(b"sk-1")) == hashlib.sha256(b"sk-1").hexdigest()[:32]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1", "[a]"),
        ("[a]\nmax_streams = 1", "neither keys nor key_sha256"),
        ('[a]\nkeys = ["s3cret"]\nmax_streams = 0', "max_streams"),
        ('[a]\nkeys = ["s3cret"]\ntokens = 5', "tokens"),
        ('[a]\nkeys = [" "]', "must not be empty"),
        ('[a]\nkey_sha256 = ["s3cret"]', "key_sha256"),
        ('[a]\nkeys = ["s3cret"]\n[b]\nkeys = ["s3cret"]', "[a] and [b] have a key in common"),
        (f'[{"x" * 65}]\nkeys = ["s3cret"]', "64 printable characters"),
        ("[", "tenants file"),
    ],
)
def test_what_is_wrong_is_named_without_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadTenants) as raised:
        load(tmp_path, text)
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadTenants, match="No such file"):
        load_tenants(tmp_path / "none")


def test_their_number_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MAX_TENANTS", 1)
    with pytest.raises(BadTenants, match="at most 1"):
        load(tmp_path, '[a]\nkeys = ["x"]\n[b]\nkeys = ["y"]')
