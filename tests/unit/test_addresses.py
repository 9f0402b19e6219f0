"""Which addresses are public: one list, and every form that an address can hide in."""

import ipaddress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.node import linux
from holdfast.node.addresses import IPV4_NON_PUBLIC, non_public

pytestmark = pytest.mark.spec("N5", "N13")

PUBLIC = ("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0",
          "192.1.0.0", "168.63.129.15", "168.63.129.17", "198.17.255.255", "198.20.0.0", "223.255.255.255",
          "2606:4700::1111", "2001:4860:4860::8888", "2001:200::1", "2a00::1", "3ffe::1", "2620:4f:8000::1",
          "::ffff:8.8.8.8", "64:ff9b::8.8.8.8")  # fmt: skip
REFUSED = ("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254",
           "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.0.9", "192.0.2.1", "192.88.99.1",
           "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
           "240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
           "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1",
           "2001:db8::1", "3fff::1", "2001::1", "2001:1::1", "2001:20::1", "100::1", "64:ff9b:1::1", "5f00::1",
           "::10.0.0.1", "4000::1", "8000::1", "::ffff:0:10.0.0.1")  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_internet_is_public(address: str) -> None:
    assert not non_public(address)


@pytest.mark.parametrize("address", REFUSED)
def test_no_other_address_is(address: str) -> None:
    assert non_public(address)


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "0x7f000001", "127.1", "1.2.3.4/8", "[::1]"])
def test_what_is_no_address_is_not_public(text: str) -> None:
    assert non_public(text) == "not an address"


IPV4 = st.ip_addresses(v=4) | st.sampled_from(IPV4_NON_PUBLIC).flatmap(lambda net: st.ip_addresses(network=net))


@given(IPV4)
@example(ipaddress.ip_address("100.64.0.1"))
@example(ipaddress.ip_address("192.0.0.192"))
@example(ipaddress.ip_address("168.63.129.16"))
def test_an_ipv4_address_inside_an_ipv6_one_is_judged_as_itself(inner: ipaddress.IPv4Address) -> None:
    plain = non_public(str(inner))
    assert non_public(f"::ffff:{inner}") == plain
    assert non_public(f"64:ff9b::{inner}") == plain
    # and no tunnel or compatible form of it is public, whichever it is
    high, low = int(inner) >> 16, int(inner) & 0xFFFF
    assert non_public(f"2002:{high:x}:{low:x}::1")
    assert non_public(f"2001:0:{high:x}:{low:x}:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}")
    assert non_public(f"::{inner}")


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_nothing_is_public_that_python_knows_to_be_private(address: ipaddress.IPv4Address) -> None:
    if not address.is_global:
        plain = getattr(address, "ipv4_mapped", None) or address
        assert non_public(str(address)) or plain.is_global


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_the_machines_own_address_is_not_public_in_any_form(address: ipaddress.IPv4Address) -> None:
    assert non_public(str(address), [str(address)])
    if address.version == 4:
        assert non_public(f"::ffff:{address}", [str(address)])
        assert non_public(f"64:ff9b::{address}", ["1.1.1.1", str(address)])


def test_own_addresses_are_read_from_the_kernel(tmp_path: Path) -> None:
    trie, inet6 = tmp_path / "fib_trie", tmp_path / "if_inet6"
    trie.write_text(
        "Local:\n  +-- 0.0.0.0/0 2 0 2\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 203.0.114.7\n"
        "        /32 host LOCAL\n     |-- 203.0.114.255\n        /32 link BROADCAST\n"
    )
    inet6.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n2a0000000000000000000000000000ff 02 40 00 80     eth0\n"
    )
    assert linux.own_addresses(str(trie), str(inet6)) == ["203.0.114.7", "2a00:0000:0000:0000:0000:0000:0000:00ff"]
    assert non_public("2a00::ff", linux.own_addresses(str(trie), str(inet6))) == "the machine's own address"
    assert linux.own_addresses(str(trie), str(tmp_path / "none")) == ["203.0.114.7"]
