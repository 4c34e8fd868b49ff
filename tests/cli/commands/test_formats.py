"""Which format goes where."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from onnxfuse.cli.commands.formats import Format, chosen, option
from onnxfuse.errors import UsageError


@click.command()
@option
def command(formats: list[Format]) -> list[Format]:
    return formats


def asked(*words: str, output: str = "") -> list[Format]:
    given = command([part for word in words for part in ("--format", word)], standalone_mode=False)
    return chosen(given, Path(output) if output else None)


TEXT = Format("text")


@pytest.mark.parametrize(
    ("words", "output", "formats"),
    [
        ((), "", [TEXT]),
        (("text",), "", [TEXT]),
        (("json",), "", [Format("json")]),
        (("json=-",), "", [Format("json")]),
        (("json",), "-", [Format("json")]),
        (("sarif",), "a.sarif", [TEXT, Format("sarif", Path("a.sarif"))]),
        (("sarif=a=b.sarif",), "", [TEXT, Format("sarif", Path("a=b.sarif"))]),
        (("text", "sarif"), "a.sarif", [TEXT, Format("sarif", Path("a.sarif"))]),
        (("github", "junit=a.xml"), "", [Format("github"), Format("junit", Path("a.xml"))]),
        (("github", "text"), "", [Format("github"), TEXT]),
        (("json", "json"), "", [Format("json")]),
        (("json=a", "json=b"), "", [TEXT, Format("json", Path("a")), Format("json", Path("b"))]),
    ],
)
def test_where_they_go(words: tuple[str, ...], output: str, formats: list[Format]) -> None:
    assert asked(*words, output=output) == formats


@pytest.mark.parametrize(
    ("words", "output", "message"),
    [
        ((), "x", "--output is for one --format other than text: name it as in --format sarif=x"),
        (("json", "sarif"), "x", "--output is for one --format: name it as in"),
        (("json=a",), "x", "--output is for one --format other than text"),
        (("text=a",), "", "text goes to stdout: redirect it"),
        (("text", "sarif"), "", "text and sarif would both go to stdout: name a file, as in --format sarif=fusions"),
        (("json", "junit"), "", "junit and json would both go to stdout"),
        (("json=a", "sarif=./a"), "", "two formats would go to .*a: name a file for each"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], output: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(*words, output=output)


@pytest.mark.parametrize(
    ("word", "message"), [("xml", "'xml' is not one of 'text', 'json'"), ("sarif=", "name a file, such as sarif=fusi")]
)
def test_what_is_no_format(word: str, message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        asked(word)


def test_a_shell_completes_them() -> None:
    (parameter,) = command.params
    found = parameter.shell_complete(click.Context(command), "j")
    assert [item.value for item in found] == ["json", "junit"]
