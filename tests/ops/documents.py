"""What the repository's Markdown shows: its fenced blocks, the commands in them, and those named in its sentences."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ops.cli import app

ROOT = Path(__file__).parents[2]
NOT_OURS = {"models", "runs", "build", "shared"}
FENCE = re.compile(r"^(`{3,})(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `info` is what stands after its fence: a language, and where the block is a file, its name."""

    place: str
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def file(self) -> str:
        return self.info.partition(" ")[2].strip()


def documents() -> list[Path]:
    """Every Markdown file of the repository."""
    found = (path for path in ROOT.rglob("*.md") if not hidden(path))
    return sorted(path for path in found if path.relative_to(ROOT).parts[0] not in NOT_OURS)


def hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(ROOT).parts)


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [block for block in _parts(document) if isinstance(block, Block)]


def prose(document: Path) -> list[str]:
    """The lines of a document that are in no fenced block."""
    return [line for line in _parts(document) if isinstance(line, str)]


def _parts(document: Path) -> Iterator[Block | str]:
    fence, info, began, inside = "", "", 0, []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        match = FENCE.match(line)
        if not fence and match:
            fence, info, began, inside = match[1], match[2].strip(), number, []
        elif fence and line == fence:
            yield Block(f"{document.relative_to(ROOT)}:{began}", info, "".join(f"{kept}\n" for kept in inside))
            fence = ""
        elif fence:
            inside.append(line)
        else:
            yield line
    assert not fence, f"{document} line {began}: the block does not end"


def commands(block: Block) -> list[str]:
    """The commands of a shell block, one line each, without comments."""
    joined = block.text.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := " ".join(shlex_words(line)))]


def shlex_words(line: str) -> list[str]:
    """The words of a line as they are written, quotes and all; a comment is none."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    return list(lexer)


def shell_commands(document: Path) -> list[str]:
    """Every command that a document's shell blocks show."""
    return [command for block in blocks(document) if block.language == "sh" for command in commands(block)]


def inline_commands(document: Path) -> list[str]:
    """The `verge …` that stand in a document's sentences."""
    text = re.sub(r"\s+", " ", "\n".join(prose(document)))
    return [found for found in re.findall(r"`([^`]+)`", text) if re.match(r"verge [a-z]", found)]


def resolved(words: list[str]) -> tuple[Any, list[str]]:
    """The command or group that `verge …` names, and the words that are left for it."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"`{' '.join(words)}`: there is no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def parsed(words: list[str]) -> dict[str, Any]:
    """What a `verge …` command line asks for, refused as the real one would be, without doing it."""
    command: Any = typer.main.get_command(app)
    context = None
    while True:
        context = command.make_context(words[0], words[1:], parent=context)
        if not hasattr(command, "resolve_command"):
            return dict(context.params)
        words = [*context._protected_args, *context.args]
        _, command, rest = command.resolve_command(context, words)
        words = [words[0], *rest]


def options(command: Any) -> set[str]:
    """The names of a command's options."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
