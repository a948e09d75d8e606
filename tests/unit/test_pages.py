"""Every page of the documentation: links lead somewhere, and the commands shown exist, with their options."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from isochrone.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md", ROOT / "requirements/README.md"]
)
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@by_name
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def options(command: click.Command) -> set[str]:
    """Of a command and of all below it."""
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        found |= options(below)
    return found | {"--help", "-h"}


def shown(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each `isochrone COMMAND ...` with its options; what stands in quotes is another program's business."""
    joined = text.replace("\\\n", " ")
    for name, rest in re.findall(r"\bisochrone ([a-z]+)((?:[ \t]+[^\s`#>&|]+)*)", joined):
        yield name, re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"\"[^\"]*\"|'[^']*'", "", rest))


@by_name
def test_commands_shown_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?\n(.*?)```", text, re.DOTALL) + re.findall(r"`(isochrone [^`]+)`", text))
    for name, flags in shown(code):
        assert name in COMMANDS, f"isochrone {name}"
        known = options(importlib.import_module(COMMANDS[name]).command)
        assert [flag for flag in flags if flag not in known] == [], f"isochrone {name}"


def test_every_command_is_shown_somewhere() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {name for name, _ in shown(text)} >= set(COMMANDS)
