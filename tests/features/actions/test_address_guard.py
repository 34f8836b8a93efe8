"""Which addresses may be called, and that the address which was checked is the one that is used."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from engine.errors import ActionFailed
from engine.features.actions.address_guard import AddressGuard, is_public


def guard(*networks: str, **names: Sequence[str]) -> AddressGuard:
    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host not in names:
            raise OSError("no such name")
        return names[host]

    return AddressGuard(networks, resolve)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
        "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::", "2002:a00:1::1", "2001:db8::1", "64:ff9b:1::7f00:1", "64:ff9b:1:ffff::1", "fec0::1", "feff::1",
        "::ffff:0:127.0.0.1", "::ffff:0:93.184.215.14", "::127.0.0.1", "::10.0.0.1",
    ],
)  # fmt: skip
async def test_private_addresses_are_refused_for_good_in_every_spelling(address: str) -> None:
    assert not is_public(ip_address(address))
    for host, check in ((address, guard()), ("name", guard(name=[address])), ("name", guard(name=["93.184.215.14", address]))):
        with pytest.raises(ActionFailed, match="not public") as raised:
            await check.addresses(host, 443, private_only=False)
        assert raised.value.final


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e"]
)
async def test_public_addresses_are_allowed(address: str) -> None:
    assert await guard(name=[address]).addresses("name", 443, private_only=False) == [str(ip_address(address))]


async def test_a_private_network_that_is_allowed_is_the_only_place_for_clear_text() -> None:
    allowed = guard("10.1.0.0/16", "::1/128", inside=["10.1.2.3"], outside=["93.184.215.14"], both=["10.1.2.3", "10.2.0.1"])
    assert await allowed.addresses("inside", 80, private_only=True) == ["10.1.2.3"]
    assert await allowed.addresses("inside", 443, private_only=False) == ["10.1.2.3"]
    for host in ("outside", "both"):
        with pytest.raises(ActionFailed, match="outside of webhook_networks"):
            await allowed.addresses(host, 80, private_only=True)


async def test_a_name_that_cannot_be_resolved_may_be_resolved_later() -> None:
    for check in (guard(), guard(name=[])):
        with pytest.raises(ActionFailed) as raised:
            await check.addresses("name", 443, private_only=False)
        assert not raised.value.final
