"""Hypothesis strategies for the values that a message store holds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.stores.golden import RecordReport

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**62)
TIMESTAMPS = st.integers(0, 4_102_444_800_000)
"""Milliseconds, up to the year 2100."""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
"""Any text that has a UTF-8 form, characters beyond the basic plane included."""

IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(
    lambda address: ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
)
"""As Java writes them: no leading zeros, no `::`."""

HOSTS = st.builds(
    lambda address, port: f"{address}:{port}",
    st.one_of(IPV4, IPV6.map("[{}]".format)),
    st.integers(0, 65_535),
)
"""`ip:port` and `[ip]:port`."""

BYTES = st.binary(max_size=300)

_PROPERTY_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
PROPERTIES = st.dictionaries(
    st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT"]), _PROPERTY_TEXTS),
    _PROPERTY_TEXTS,
    max_size=40,
)
"""Names and values that survive the format: not empty, and without its separators."""


def _record(properties: dict[str, str], **fields: Any) -> RecordReport:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
    return RecordReport(
        **fields, properties=properties, properties_raw=raw,
        store_size=0, body_crc=0, body_uncompressed=None, msg_id="", crc_ok=True, raw={},
    )  # fmt: skip


RECORDS = st.builds(
    _record,
    properties=PROPERTIES,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    queue_id=INT32,
    queue_offset=INT64,
    physical_offset=INT64,
    flag=INT32,
    sys_flag=INT32,
    born_timestamp=INT64,
    born_host=HOSTS,
    store_timestamp=INT64,
    store_host=HOSTS,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
    body=BYTES,
)
"""Messages with any values that a record's fields can hold."""


def client_records(*, store_v6: bool = False) -> st.SearchStrategy[RecordReport]:
    """Messages as they are sent to a store: what only the store knows is left zero.

    Args:
        store_v6: the store's address is IPv6.
    """
    return st.builds(
        _record,
        properties=PROPERTIES,
        topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
        queue_id=st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1)),
        queue_offset=st.just(0),
        physical_offset=st.just(0),
        flag=INT32,
        sys_flag=st.sampled_from([0, 0, 0, 0x1, 0x301, 0x4, 0x8, 0xC]),
        born_timestamp=INT64,
        born_host=HOSTS,
        store_timestamp=st.just(0),
        store_host=st.just("[0:0:0:0:0:0:0:0]:0" if store_v6 else "0.0.0.0:0"),
        reconsume_times=st.integers(0, 2**31 - 1),
        prepared_transaction_offset=st.just(0),
        body=BYTES,
    )
