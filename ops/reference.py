"""`verge reference`: every command and every field of a config as a page, written from the code that reads them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ops.config import RESUMABLE, RunConfig

WRITTEN = "Written by `{}`; `make reference` renews it."
_HERE = f"{Path(__file__).parents[1]}/"
"""What a path that is a default begins with on this machine."""
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def config_page() -> str:
    """ops/CONFIG.md: each section of a run's TOML file, with its fields, their types, defaults and meanings."""
    required = ", ".join(_code(name) for name, info in RunConfig.model_fields.items() if info.is_required())
    lines = [
        "# Every field of a run's TOML file",
        "",
        WRITTEN.format("verge reference config"),
        "",
        f"Required are only {required}. `--set section.field=value` overrides a field, and an unknown "
        "one is refused. A field with ↻ may have another value when a run is resumed; any other is part of what the "
        "run is, and starting over takes `--fresh` or another name.",
    ]
    for name, section, fields in _sections(RunConfig):
        lines += ["", f"## {f'[{name}]' if name else 'The top of the file'}", "", _prose(section.__doc__ or "")]
        lines += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
        properties = section.model_json_schema()
        lines += [_row(name, field, info, properties) for field, info in fields]
    return "\n".join(lines) + "\n"


def _sections(
    section: type[BaseModel], name: str = ""
) -> Iterator[tuple[str, type[BaseModel], list[tuple[str, FieldInfo]]]]:
    """(dotted name, class, fields that are values) of a section and of those inside it."""
    nested = [(field, inner) for field, info in section.model_fields.items() if (inner := _section_of(info))]
    values = [(field, info) for field, info in section.model_fields.items() if not _section_of(info)]
    yield name, section, values
    for field, inner in nested:
        yield from _sections(inner, f"{name}.{field}".lstrip("."))


def _section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The section that a field is, also one that may be absent."""
    kinds = [kind for kind in (info.annotation, *get_args(info.annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _row(section: str, field: str, info: FieldInfo, schema: dict[str, Any]) -> str:
    default = info.get_default(call_default_factory=True, validated_data={})
    shown = "required" if default is PydanticUndefined else "–" if default is None else _code(_toml(default))
    free = RESUMABLE.get(section or field, set())
    again = " ↻" if free is None or field in free else ""
    kind = _type(schema["properties"][field], schema.get("$defs", {}))
    return _table_row(f"`{field}`{again}", kind, shown, _prose(info.description or ""))


def _type(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    """A field's type and bounds in a few words."""
    if "$ref" in schema:
        return _type(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return " or ".join(_type(part, defs) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema:
        return ", ".join(_code(str(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(str(schema["const"]))
    if schema.get("type") == "array":
        items: dict[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", [])), {})
        return f"list of {_type(items, defs)}"
    names = {"integer": "integer", "number": "number", "boolean": "true or false", "object": "table"}
    name = names.get(schema["type"], "path" if schema.get("format") == "path" else "text")
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join([name, ", ".join(bounds)]).strip()


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False, default=str)


def commands_page() -> str:
    """ops/COMMANDS.md: each command with its arguments and options."""
    import typer

    from ops.cli import app

    lines = [
        "# Every command",
        "",
        WRITTEN.format("verge reference commands"),
        "",
        "A run is named by its TOML file or, once it was started, by its folder. What a person must mend is one line "
        "on stderr and exit status 1; a command line that cannot be read exits with 2.",
    ]
    for words, command in _commands(typer.main.get_command(app), ["verge"]):
        lines += ["", f"## {' '.join(words)}", "", _prose(command.help or "")]
        context = command.make_context(" ".join(words), [], resilient_parsing=True)
        rows = [record for parameter in command.params if (record := parameter.get_help_record(context))]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|"]
            lines += [_table_row(_code(name), _prose(meaning).replace(_HERE, "")) for name, meaning in rows]
    return "\n".join(lines) + "\n"


def _commands(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Every visible command that is no group, with the words that name it, by name."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in sorted(command.commands.items()):
        if not inner.hidden:
            yield from _commands(inner, [*words, name])


def _code(text: str) -> str:
    return f"`{text}`"


def _prose(text: str) -> str:
    """A docstring as one paragraph each."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


def _table_row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("|", "\\|")
