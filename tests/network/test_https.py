"""https.py: which proxy an https URL has, and what may stand in https_proxy."""

from __future__ import annotations

import base64

import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.https import proxy_for

URL = "https://login.example/token"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "https_proxy", "all_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("setting", "address", "login"),
    [
        ("http://p:3128", "http://p:3128", None),
        (" HTTP://p:3128/ ", "http://p:3128", None),
        ("p:3128", "http://p:3128", None),
        ("//p:3128", "http://p:3128", None),
        ("p", "http://p:80", None),
        ("https://p", "https://p:443", None),
        ("http://p:", "http://p:80", None),
        ("http://p:3128/path?x#y", "http://p:3128", None),
        ("[::1]:3128", "http://[::1]:3128", None),
        ("http://me:pw@[fe80::1%25eth0]:3128", "http://[fe80::1%25eth0]:3128", "me:pw"),
        ("me:pw@p:3128", "http://p:3128", "me:pw"),
        ("http://me:pw:x@p:3128", "http://p:3128", "me:pw:x"),
        ("http://me@p:3128", "http://p:3128", "me"),
        ("http://m%40e:%25%2F@p:3128", "http://p:3128", "m@e:%/"),
        ("http://me:a/b@p:3128/path", "http://p:3128", "me:a/b"),
        ("http://me:a[b]#?c@p:3128", "http://p:3128", "me:a[b]#?c"),
        ("http://DOMAIN\\me:pw@p:3128", "http://p:3128", "DOMAIN\\me:pw"),
        ("http://me:pw€@p:3128", "http://p:3128", "me:pw€"),
    ],
)
def test_each_form_of_a_proxy_gives_its_address_and_login(
    setting: str, address: str, login: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", setting)
    proxy = proxy_for(URL)
    assert proxy is not None
    assert proxy.address == address
    shown = proxy.login and base64.b64decode(proxy.login.reveal().removeprefix("Basic ")).decode()
    assert shown == login
    assert "Basic" not in repr(proxy)


NO_PROXIES = (
    *("http:/me:pw@p:1", "http:me:pw@p:1", "http://", "http:///p:1", "http://p:x", "http://p:65536", "http://p:1x"),
    *("http://a\\b:1", "socks5://me:pw@p:1080", "ftp://p:1", "http://me:pw@", "http://[::1", "http://:3128"),
)


@pytest.mark.parametrize("setting", NO_PROXIES)
def test_what_is_no_http_proxy_is_an_error_that_does_not_quote_it(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", setting)
    with pytest.raises(ConfigError, match="https_proxy") as raised:
        proxy_for(URL)
    assert "me:pw" not in str(raised.value)


@pytest.mark.parametrize("setting", ["", "  "])
def test_an_empty_proxy_is_none(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", setting)
    assert proxy_for(URL) is None
