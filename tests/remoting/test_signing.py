"""Signatures of requests, and the files with access keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import read_credentials
from rmqstore_spark.remoting.access.signing import (
    ACCESS_KEY,
    SIGNATURE,
    SecretKey,
    SessionCredentials,
)
from rmqstore_spark.remoting.access.yaml_values import parse_yaml
from rmqstore_spark.remoting.codec.command import Command
from tests.remoting.reading import read_frames
from tests.support.recordings import exchanges

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_KEY = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
_FIELDS = st.dictionaries(_TEXT, _TEXT, max_size=6)


@pytest.mark.parametrize(
    ("recording", "secret", "least"),
    [("mqadmin", "12345678", 200), ("mqadmin-online", "12345678", 5), ("cpp-send-push", "", 100)],
)
def test_signatures_of_real_clients_are_right(recording: str, secret: str, least: int) -> None:
    key = SecretKey(secret)
    seen = 0
    for peer in ("broker", "namesrv"):
        for each in exchanges(recording, peer):
            (request,) = read_frames(each.request.wire)
            if SIGNATURE in request.ext:
                assert key.has_signed(request), request
                seen += 1
    assert seen >= least


@given(_FIELDS, st.binary(max_size=40), _TEXT)
def test_what_is_signed_is_accepted_and_nothing_else(
    fields: dict[str, str], body: bytes, secret: str
) -> None:
    fields = {name: value for name, value in fields.items() if name not in (ACCESS_KEY, SIGNATURE)}
    signed = SessionCredentials("the-account", secret).signed(Command(10, fields, body))
    assert signed.ext[ACCESS_KEY] == "the-account"
    assert {**fields}.items() <= signed.ext.items()
    key = SecretKey(secret)
    assert key.has_signed(signed)
    # As Java computes it: values in the order of the names' UTF-16 units, then the body.
    names = sorted({*signed.ext} - {SIGNATURE}, key=lambda name: name.encode("utf-16-be"))
    text = "".join(signed.ext[name] for name in names).encode() + body
    expected = base64.b64encode(hmac.digest(secret.encode(), text, hashlib.sha1)).decode()
    assert signed.ext[SIGNATURE] == expected
    signed.body += b"x"
    assert not key.has_signed(signed)


def test_a_secret_is_not_shown() -> None:
    credentials = SessionCredentials("the-account", "the-secret")
    assert "the-secret" not in f"{credentials!r} {credentials!s} {SecretKey('the-secret')!r}"
    with pytest.raises(TypeError):
        SecretKey("the-secret").__reduce__()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(access=_KEY, secret=_KEY)
def test_any_keys_are_read_as_they_were_written(tmp_path: Path, access: str, secret: str) -> None:
    quoted = [json.dumps(each, ensure_ascii=False) for each in (access, secret)]
    path = write(tmp_path / "tools.yml", "accessKey: {}\nsecretKey: {}\n".format(*quoted))
    read = read_credentials(path)
    request = Command(10, {"a": "b"})
    assert read.signed(request) == SessionCredentials(access, secret).signed(request)


def test_digits_need_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "tools.yml", "accessKey: rocketmq2\nsecretKey: 12345678\n")
    request = Command(10, {"a": "b"})
    assert read_credentials(path).signed(request) == (
        SessionCredentials("rocketmq2", "12345678").signed(request)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("accessKey: account-1\n", "has no secretKey"),
        ("accessKey: account-1\nsecretKey: ''\n", "line 2: secretKey must be 1 to 255"),
        ("accessKey: account-1\nsecretKey: 01234567\n", "line 2: secretKey is not a text"),
        ("accessKey: account-1\nsecretKey: 1_234_567\n", "line 2: secretKey is not a text"),
        ("accessKey: account-1\nsecretKey: 2020-10-10\n", "line 2: secretKey is not a text"),
        ("accessKey: account-1\nsecretKey: [geheimnis]\n", "line 2: secretKey must be a text"),
        ("accessKey: account-1\nsecretkey: geheimnis\n", "Did you mean secretKey"),
        ("accessKey: account-1\nsecretKey: geheimnis\naccessKey: x\n", "line 3: accessKey stands"),
        ("accessKey: account-1\nsecretKey: 'geheimnis\n", "this is not YAML"),
        ("accessKey: account-1\nsecretKey: %geheimnis\n", "this is not YAML"),
        ("accessKey: account-1\nsecretKey: geheimnis\n--- {}\n", "this is not YAML"),
        ("- geheimnis\n", "must be a mapping"),
        ("a: &a [geheimnis]\nb: *a\n", "line 1: anchors and aliases"),
        ("a: " + "[" * 100 + "]" * 100, "line 1: this is nested too deep"),
        ("accessKey: !!python/name:os.system 'geheimnis'\n", "is not a text"),
        ('accessKey: account-1\nsecretKey: "geheimnis\\n"\n', "printable"),
    ],
)
def test_files_that_are_wrong_are_refused_without_showing_secrets(
    tmp_path: Path, text: str, said: str
) -> None:
    path = write(tmp_path / "tools.yml", text)
    with pytest.raises(OptionError, match=said) as raised:
        read_credentials(path)
    assert str(path) in str(raised.value)
    assert "geheimnis" not in str(raised.value)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tools.yml", "# more\n" * 200_000)
    with pytest.raises(OptionError, match="is too large"):
        read_credentials(path)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = parse_yaml("some.yml", data)
        value.fields(("a",))
        value.items()
    except OptionError:
        pass
