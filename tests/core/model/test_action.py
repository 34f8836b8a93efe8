"""Targets of actions: what may be written as `do`, and what it means."""

from __future__ import annotations

import pytest

from engine.core.model.action import ActorTarget, ServeTarget, WebhookTarget, action_of, parse_target
from engine.errors import Invalid


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ray://shop/carts.touch", ActorTarget("shop", "carts", "touch")),
        ("ray://shop/carts.eu-1.touch_2", ActorTarget("shop", "carts.eu-1", "touch_2")),
        ("serve://orders/Orders.confirm", ServeTarget("orders", "Orders", "confirm")),
        ("serve://app.v2/Orders", ServeTarget("app.v2", "Orders", "__call__")),
        ("https://Hooks.example.com", WebhookTarget(True, "hooks.example.com", 443, "/")),
        ("https://h.example:8443/a/b?c=d%20e&f", WebhookTarget(True, "h.example", 8443, "/a/b?c=d%20e&f")),
        ("http://[::1]:80/x", WebhookTarget(False, "::1", 80, "/x")),
        ("http://10.0.0.1/", WebhookTarget(False, "10.0.0.1", 80, "/")),
    ],
)
def test_what_may_be_a_target(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "ray://shop/carts", "ray://shop/carts.", "ray://shop/carts._private", "ray://shop/carts.__ray_call__", "ray:///a.b",
        "ray://a/b/c.d", "ray://a/b.c\n", "https://", "https:///x", "https://user@host/", "https://user:pw@host/", "https://host/#f",
        "https://host/a b", "https://host\r\nX: y/", "https://host/\r\nX:y", "https://host/\u00e9", "https://h\u00f6st/", "https://host:0/",
        "https://host:65536/", "ftp://host/", "HTTPS://host/", "https://host/" + "x" * 2048, " https://host/", "https://host/\n",
        "https://-host/", "serve://orders", "serve://orders/", "serve://orders/Orders.", "serve://orders/Orders._private", "serve:///a.b",
        "serve://orders/Orders.__call__", "serve://orders/a/b",
    ],
)  # fmt: skip
def test_what_may_not(text: str) -> None:
    with pytest.raises(Invalid, match="ray://NAMESPACE/ACTOR"):
        parse_target(text)


def test_the_authority_names_the_port_where_it_is_not_the_scheme_s() -> None:
    urls = ("https://h/", "https://h:444/", "http://h:443/", "http://h:80/", "https://[::1]:9/")
    targets = [parse_target(url) for url in urls]
    assert [target.authority for target in targets if isinstance(target, WebhookTarget)] == ["h", "h:444", "h:443", "h", "[::1]:9"]


def test_metrics_name_a_target_without_what_may_be_secret() -> None:
    names = ("ray://shop/carts.touch", "serve://orders/Orders", "https://h:444/hook?token=x", "http://10.0.0.1/a")
    assert [parse_target(name).label for name in names] == [
        "ray://shop/carts.touch", "serve://orders/Orders.__call__", "https://h:444", "http://10.0.0.1",
    ]  # fmt: skip


def test_a_key_is_of_one_target_user_and_message() -> None:
    keys = {action_of(target, key, id).key for target in ("https://a/", "https://b/") for key in ("t:u", "t:v", "s:u") for id in ("1", "2")}
    assert len(keys) == 12
    assert action_of("https://a/", "t:u", "1") == action_of("https://a/", "t:u", "1")
