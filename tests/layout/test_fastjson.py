from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout import fastjson
from rmqstore_spark.layout.fastjson import dump_fastjson, parse_fastjson
from tests.support.stores.golden import load_queues


@pytest.mark.parametrize("name", ["live", "ha-master", "delayed"])
def test_every_config_file_of_a_broker_parses(golden: Callable[[str], Path], name: str) -> None:
    files = sorted((golden(name) / "store/config").glob("*.json*"))
    assert files
    for path in files:
        assert isinstance(parse_fastjson(path.read_text("utf-8"), file=str(path)), dict)


def test_what_a_broker_wrote_about_its_queues(golden: Callable[[str], Path]) -> None:
    config = golden("live") / "store/config"
    topics = parse_fastjson((config / "topics.json").read_text("utf-8"))["topicConfigTable"]
    offsets = parse_fastjson((config / "consumerOffset.json").read_text("utf-8"))["offsetTable"]
    queues = load_queues(golden("live")).queues
    assert topics["LiveTopic"]["readQueueNums"] == 4
    assert "LiveTopic@cg_live" in offsets
    for topic_and_group, of_queues in offsets.items():
        topic = topic_and_group.split("@")[0]
        for queue_id, offset in of_queues.items():
            # a consumer asks for queues too that no message was ever put into
            queue = queues.get((topic, int(queue_id)))
            assert 0 <= offset <= (queue.max_offset if queue else 0)


def test_unquoted_keys() -> None:
    text = '{"offsetTable":{1:7,3:2,-4:0,\n\t"5" : 1,word_:true}, 2147483647 :[]}'
    assert parse_fastjson(text) == {
        "offsetTable": {"1": 7, "3": 2, "-4": 0, "5": 1, "word_": True},
        "2147483647": [],
    }


def test_what_looks_like_a_key_inside_a_string_stays() -> None:
    text = r'{"a{0:1}":"{0:17,\"1\":2}","b":"\\","c":"0:","d":"\u007b1:2}"}'
    assert parse_fastjson(text) == {
        "a{0:1}": '{0:17,"1":2}',
        "b": "\\",
        "c": "0:",
        "d": "{1:2}",
    }


def test_of_two_keys_alike_the_last_counts() -> None:
    assert parse_fastjson('{1:1,"1":2,"a":3,a:4}') == {"1": 2, "a": 4}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("9223372036854775807", 2**63 - 1),
        ("1.5e3", 1500.0),
        (" [ ] ", []),
        ("[1,]", [1]),
        ('{"a":1,}', {"a": 1}),
        ("\ufeff{}", {}),
        ('"line\nbreak"', "line\nbreak"),
        ("null", None),
        ("[true,false]", [True, False]),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_fastjson(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "}",
        "[",
        "{1}",
        "{1:}",
        "{:1}",
        "{1:2",
        "{1:2]",
        "{1:2 3:4}",
        "{,}",
        "[,]",
        "[1 2]",
        "[1,,2]",
        '"open',
        '"\\',
        '"\\q"',
        '"\\u12"',
        '{"a":1}x',
        "{} {}",
        "NaN",
        "Infinity",
        "-",
        "1.",
        "+1",
        "1-2",
        "0x10",
        "True",
        "{'a':1}",
        "1" * 101,
        "{" + "k" * 300 + ":1}",
        "{漢:1}",
    ],
)
def test_what_is_no_json_is_an_error_with_file_and_place(text: str) -> None:
    with pytest.raises(
        CorruptStoreError, match=r" in topics\.json at offset \d+\. Repair or remove"
    ):
        parse_fastjson(text, file="topics.json")


@pytest.mark.threat("Lengths are checked before allocation")
def test_depth_is_bounded() -> None:
    deepest = "[" * fastjson.MAX_DEPTH + "]" * fastjson.MAX_DEPTH
    assert parse_fastjson(deepest)
    for hostile in (f"[{deepest}]", "[" * 1_000_000, "{1:" * 1_000_000, '{"a":[' * 500_000):
        with pytest.raises(CorruptStoreError, match="JSON objects are nested more than 64 deep"):
            parse_fastjson(hostile)


@pytest.mark.threat("Lengths are checked before allocation")
def test_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "MAX_LENGTH", 10)
    assert parse_fastjson("[1234,567]") == [1234, 567]
    with pytest.raises(CorruptStoreError, match=r"too long \(11 characters\) in f"):
        parse_fastjson("[1234,5678]", file="f")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=5) | st.dictionaries(st.text(max_size=10), children, max_size=5)
    ),
    max_leaves=30,
)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_all_json_is_understood(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse_fastjson(text) == json.loads(text)


@given(st.dictionaries(st.integers(-(2**31), 2**31), st.text(max_size=12), max_size=12))
def test_numbers_as_keys_are_understood(table: dict[int, str]) -> None:
    text = "{" + ",".join(f"{key}:{json.dumps(text)}" for key, text in table.items()) + "}"
    assert parse_fastjson(text) == {str(key): text for key, text in table.items()}


@pytest.mark.threat("Data is never executed")
@given(st.one_of(st.text(max_size=80), st.text('{}[]":,0123456789-.eE\\ \ntruefalsn', max_size=80)))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        parse_fastjson(text)
    except CorruptStoreError:
        return
    assert text.strip("\ufeff \t\r\n")


@pytest.mark.threat("Lengths are checked before allocation")
def test_hostile_quotes_take_no_quadratic_time() -> None:
    with pytest.raises(CorruptStoreError):
        parse_fastjson('{"' + '\\"' * 2_000_000)


@pytest.mark.parametrize("name", ["live", "ha-master", "delayed"])
def test_a_brokers_config_files_are_written_as_the_broker_did(
    golden: Callable[[str], Path], name: str
) -> None:
    for path in (golden(name) / "store/config").glob("*.json*"):
        text = path.read_text("utf-8")
        assert dump_fastjson(_numbered(parse_fastjson(text))) == text


def _numbered(value: Any) -> Any:
    """The same with numbers for keys that are numbers in Java."""
    if not isinstance(value, dict):
        return value
    return {int(key) if key.isdigit() else key: _numbered(v) for key, v in value.items()}


JSON_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), JSON_TEXTS,
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(JSON_TEXTS, inner.filter(lambda value: value is not None), max_size=4),
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON_VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert parse_fastjson(dump_fastjson(value)) == value


def test_lists_numbers_as_keys_and_nothing() -> None:
    assert dump_fastjson({"a": [1, "b"], "c": [], "d": {}, "e": None, "f": {0: 17, 1: 2}}) == (
        '{\n\t"a":[\n\t\t1,\n\t\t"b"\n\t],\n\t"c":[],\n\t"d":{},\n\t"f":{0:17,1:2\n\t}\n}'
    )


@pytest.mark.parametrize("value", [float("nan"), "\ud800", {"a": [float("inf")]}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"JSON cannot represent|surrogates not allowed"):
        dump_fastjson(value)


@pytest.mark.parametrize("value", [b"", {1.5: 1}, {True: 1}, [object()]])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"a JSON (key|value) cannot be"):
        dump_fastjson(value)
