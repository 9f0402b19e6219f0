"""Which indexes, hosts and folders a build gets from pip's configuration on the machine (SPEC N5)."""

from pathlib import Path

import pytest

from holdfast.node.attempt.index_proxy import ParentProxy
from holdfast.node.attempt.pip_settings import DefaultIndex, PipSettings, parsed, settings_of

pytestmark = pytest.mark.spec("N5", "A12")

NONE = frozenset[tuple[str, int]]()
P, Q = "http://p.example:1", "http://q.example:1"
USUAL = DefaultIndex("https://usual.example/simple", "files.usual.example")


def settings(
    options: dict[str, str], environ: dict[str, str] | None = None, private: tuple[str, ...] = ()
) -> PipSettings:
    return settings_of(options, environ or {}, USUAL, NONE, private)


def test_a_variable_wins_over_the_section_of_a_command_and_that_over_the_global_one() -> None:
    listing = """:env:.index-url='https://env.example/'
download.extra-index-url='https://download.example/'
global.cert='/a "quoted" path'
global.extra-index-url='https://global.example/'
global.index-url='https://global.example/'
freeze.find-links='/nowhere'
install.find-links='/x /y'
not a setting
"""
    assert parsed(listing) == {
        "cert": '/a "quoted" path',
        "extra-index-url": "https://download.example/",
        "index-url": "https://env.example/",
        "find-links": "/x /y",
    }


def test_without_a_setting_the_index_is_the_usual_one_with_the_host_of_its_files() -> None:
    assert settings({}).hosts == {("usual.example", 443), ("files.usual.example", 443)}
    assert settings({"no-index": "1"}).hosts == NONE
    assert settings({"no-index": "false"}).hosts != NONE


def test_the_hosts_are_those_of_every_index_and_those_that_the_operator_adds() -> None:
    options = {
        "index-url": "https://me.example:secret@Mirror.example/simple",
        "extra-index-url": "http://other.example:8080/simple file:///nowhere",
        "find-links": "https://third.example/wheels /nowhere",
        "trusted-host": "other.example",
        "quiet": "1",
    }
    found = settings_of(options, {}, USUAL, frozenset({("files.example", 443)}), ())
    assert found.hosts == {
        ("mirror.example", 443), ("other.example", 8080), ("third.example", 443), ("files.example", 443)
    }  # fmt: skip
    assert found.variables == {
        "PIP_INDEX_URL": options["index-url"],
        "PIP_EXTRA_INDEX_URL": options["extra-index-url"],
        "PIP_FIND_LINKS": options["find-links"],
        "PIP_TRUSTED_HOST": "other.example",
    }


def test_a_local_index_is_shown_with_the_folder_around_it_only_if_that_is_public(tmp_path: Path) -> None:
    # given an index in a folder below a private one, as pytest makes it, and the system's own folders
    simple = tmp_path / "pypi" / "simple"
    simple.mkdir(parents=True)
    assert settings({"index-url": f"file://{simple}"}).folders == (str(simple),)
    assert settings({"find-links": str(simple)}).folders == (str(simple),)
    # when everybody may read the folder around it
    assert settings({"index-url": "file:///usr/share"}).folders == ("/usr",)
    # then it is shown, unless it holds the node's own folder, or is the whole machine
    assert settings({"index-url": "file:///usr/share"}, private=("/usr/local/node",)).folders == ("/usr/share",)
    assert settings({"index-url": "file:///usr"}).folders == ()
    assert settings({"find-links": "/usr/share"}).folders == ("/usr/share",)


def test_a_certificate_is_taken_from_pips_option_or_from_the_usual_variables(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    two.touch()
    assert settings({"cert": str(one)}, {"SSL_CERT_FILE": str(two)}).certificate == str(one)
    assert settings({}, {"REQUESTS_CA_BUNDLE": str(two)}).certificate == str(two)
    assert settings({"cert": "/nowhere"}, {"SSL_CERT_FILE": str(two)}).certificate == str(two)


@pytest.mark.parametrize(
    ("options", "environ", "target", "proxy"),
    [
        ({}, {}, ("a.example", 443), ""),
        ({}, {"HTTPS_PROXY": P}, ("a.example", 443), P),
        ({}, {"HTTPS_PROXY": P}, ("a.example", 80), ""),
        ({}, {"http_proxy": "p.example:1", "HTTP_PROXY": "q.example:1"}, ("a.example", 80), P),
        ({}, {"ALL_PROXY": P}, ("a.example", 443), P),
        (
            {"proxy": P},
            {"HTTPS_PROXY": Q},
            ("a.example", 443),
            P,
        ),
        ({}, {"HTTPS_PROXY": P, "NO_PROXY": ".example, b"}, ("a.example", 443), ""),
        ({}, {"HTTPS_PROXY": P, "NO_PROXY": "ample"}, ("a.example", 443), P),
        ({}, {"HTTPS_PROXY": P, "NO_PROXY": "*"}, ("a.example", 443), ""),
    ],
)
def test_the_proxy_of_the_machine_is_used(
    options: dict[str, str], environ: dict[str, str], target: tuple[str, int], proxy: str
) -> None:
    expected = ParentProxy(proxy) if proxy else None
    assert settings(options, environ).parent_of(target) == expected
