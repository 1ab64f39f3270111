"""Hypothesis strategies for the values that a message store holds."""

from __future__ import annotations

from hypothesis import strategies as st

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
