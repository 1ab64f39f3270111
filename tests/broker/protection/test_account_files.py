"""Account files and patterns of addresses: by properties, and what is wrong in them."""

from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.broker.acl.accounts import RIGHTS, Right, need_of_group, need_of_topic
from rmqstore_spark.broker.acl.addresses import WhiteAddresses
from rmqstore_spark.broker.acl.files import parse_accounts
from rmqstore_spark.errors import OptionError

_NAME = st.text("abcXYZ_-%|019", min_size=1, max_size=8)
_KEY = st.text(st.characters(categories=["L", "N"]), min_size=7, max_size=12)
_WORD = st.sampled_from(sorted(RIGHTS))
_PERMS = st.dictionaries(_NAME, _WORD, max_size=3)
_ACCOUNT = st.fixed_dictionaries(
    {
        "accessKey": _KEY,
        "secretKey": _KEY,
        "admin": st.booleans(),
        "defaultTopicPerm": _WORD,
        "defaultGroupPerm": _WORD,
        "topicPerms": _PERMS,
        "groupPerms": _PERMS,
    }
)


@settings(max_examples=25)
@given(st.lists(_ACCOUNT, max_size=2, unique_by=lambda each: each["accessKey"]), _NAME)
def test_rights_are_those_of_the_file(accounts: list[dict[str, object]], other: str) -> None:
    written = [
        {
            name: [f"{key}={right}" for key, right in value.items()]
            if isinstance(value, dict)
            else value
            for name, value in account.items()
        }
        for account in accounts
    ]
    # JSON is YAML.
    data = json.dumps({"accounts": written}, ensure_ascii=False).encode()
    read = parse_accounts([("plain_acl.yml", data)]).by_key
    assert read.keys() == {account["accessKey"] for account in accounts}
    for account in accounts:
        found = read[str(account["accessKey"])]
        topics, groups = account["topicPerms"], account["groupPerms"]
        assert isinstance(topics, dict)
        assert isinstance(groups, dict)
        for name in {*topics, *groups, other}:
            topic = RIGHTS[topics.get(name, account["defaultTopicPerm"])]
            group = RIGHTS[groups.get(name, account["defaultGroupPerm"])]
            is_free = bool(account["admin"]) and not topics and not groups
            for right in (Right.PUB, Right.SUB, Right.ANY):
                assert found.may(need_of_topic(name, right)) == (is_free or bool(topic & right))
            assert found.may(need_of_group(name)) == (is_free or bool(group & Right.SUB))
            assert found.may(need_of_topic(f"%RETRY%{name}", Right.PUB)) == (
                found.may(need_of_group(name))
            )


def test_defaults_do_not_open_topics_with_messages_of_others() -> None:
    text = """{accounts: [{accessKey: account-1, secretKey: geheimnis, defaultTopicPerm: SUB,
        topicPerms: [LISTED_REPLY_TOPIC=SUB]}]}"""
    account = parse_accounts([("plain_acl.yml", text.encode())]).by_key["account-1"]
    for name in (
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "%DLQ%orders",
        "broker-a_REPLY_TOPIC", "OFFSET_MOVED_EVENT",
    ):  # fmt: skip
        assert not account.may(need_of_topic(name, Right.ANY)), name
    for name in ("orders", "LISTED_REPLY_TOPIC", "%LMQ%orders"):
        assert account.may(need_of_topic(name, Right.SUB)), name


_GOOD = "accounts:\n- accessKey: account-1\n  secretKey: geheimnis\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: 1\n", "line 1: accounts must be a list"),
        ("accounts:\n- 1\n", "line 2: accounts must be a mapping"),
        ("acounts: []\n", "acounts is not a name that the file can have. Did you mean accounts"),
        (_GOOD + "  admin: perhaps\n", "line 4: admin must be true or false"),
        (_GOOD + "  isAdmin: true\n", "Did you mean admin"),
        (_GOOD + "  defaultTopicPerm: PUBB\n", "line 4: defaultTopicPerm must have one of"),
        (_GOOD + "  topicPerms:\n  - a\n", "line 5: topicPerms must be a name with a right"),
        (_GOOD + "  topicPerms:\n  - =SUB\n", "line 5: topicPerms must be a name with a right"),
        (_GOOD + "  topicPerms:\n  - a=sub\n", "line 5: topicPerms must have one of"),
        (_GOOD + "  topicPerms: [a=SUB, a=PUB]\n", "line 4: topicPerms lists a twice"),
        (
            _GOOD + '  groupPerms: [g=DENY]\n  topicPerms:\n  - "%RETRY%g=SUB"\n',
            "topicPerms lists %RETRY%g twice: groupPerms has g",
        ),
        (_GOOD + "  whiteRemoteAddress: 1.2.3\n", "line 4: whiteRemoteAddress is wrong: '1.2.3'"),
        (_GOOD + _GOOD.removeprefix("accounts:\n"), "line 4: accounts has the accessKey of"),
        ("globalWhiteRemoteAddresses: [300.1.1.1]\n", "line 1: globalWhiteRemoteAddresses"),
        (
            "globalWhiteRemoteAddresses:\n" + "- 10.1.2.3\n" * 10_001,
            "line 2: globalWhiteRemoteAddresses is wrong: there are more than 10000 addresses",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        parse_accounts([("plain_acl.yml", text.encode())])
    assert "geheimnis" not in str(raised.value)


def test_an_account_stands_in_one_file() -> None:
    with pytest.raises(OptionError, match=r"b\.yml, line 2"):
        parse_accounts([("a.yml", _GOOD.encode()), ("b.yml", _GOOD.encode())])


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.10.103.5", ["10.10.103.5", "::ffff:10.10.103.5"], ["10.10.103.50", "10.10.10.35"]),
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255"], ["10.10.104.1", "110.10.103.1"]),
        ("10.10.*", ["10.10.1.2"], ["10.1.0.1", "10.100.1.2"]),
        ("10.10-12.*.*", ["10.11.1.2"], ["10.13.1.2"]),
        ("10.10.1-3.7", ["10.10.2.7"], ["10.10.2.8"]),  # RocketMQ does not look at the 7
        ("10.1.2.{3,4}", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
        ("10.1.2.3,10.1.2.9", ["10.1.2.9"], ["10.1.2.4"]),
        ("*", ["1.2.3.4", "::1"], []),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("1050::5:600:300c:1-200", ["1050::5:600:300c:1ff"], ["1050::5:600:300c:201"]),
        ("1050::5:600:300c:*", ["1050::5:600:300c:ffff"], ["1050::5:600:300d:1"]),
        ("fe80::{1,a}", ["fe80::a"], ["fe80::b"]),
    ],
)
def test_patterns_of_addresses(pattern: str, inside: list[str], outside: list[str]) -> None:
    white = WhiteAddresses([pattern])
    assert [host for host in inside if not white.holds(host)] == []
    assert [host for host in outside if white.holds(host)] == []
    assert white.holds("no address") == (pattern == "*")


@pytest.mark.parametrize(
    "pattern",
    [
        *("1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.9-4", "1.2.3.-4", "1.2.3.1-2-3", "a.b.c.d"),
        *("1.2.{3,4}.5", "1:2:3", "::g", "1::2::3", "10.0.0.0/8", "1.2.3.{}", "localhost"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern of addresses"):
        WhiteAddresses([pattern])


@given(st.ip_addresses())
def test_an_address_matches_itself_and_no_neighbour(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if address.version == 6 and address.ipv4_mapped is not None:
        return  # it is an IPv4 address
    white = WhiteAddresses([str(address)])
    assert white.holds(str(address))
    if int(address) & 0xFFFF:
        assert not white.holds(str(address - 1))
