"""The pages that list every command and every field are those that the code writes now."""

from pathlib import Path
from typing import get_args

import pytest

from ops.config import RunConfig
from ops.reference import commands_page, config_page

OPS = Path(__file__).parents[2] / "ops"


@pytest.mark.parametrize(("name", "page"), [("COMMANDS.md", commands_page), ("CONFIG.md", config_page)])
def test_a_page_of_reference_is_current(name: str, page: object) -> None:
    assert callable(page)
    assert (OPS / name).read_text(encoding="utf-8") == page(), f"ops/{name} is not what the code says: make reference"


def test_every_field_of_every_section_is_there_with_its_default_and_whether_it_may_change() -> None:
    page = config_page()
    for name, info in RunConfig.model_fields.items():
        kinds = (info.annotation, *get_args(info.annotation))  # of an optional section, the one that is not None
        section = next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), None)
        body = page.split(f"\n## [{name}]\n")[1].split("\n## [")[0] if section else page.split("\n## [")[0]
        for field in section or (name,):
            assert f"| `{field}`" in body or f"## [{name}.{field}]" in page, f"{name}.{field}"
    assert "| `steps` ↻ | integer ≥ 1 | `1000` |" in page
    assert "| `lr` | number > 0 | `1e-06` |" in page
    assert "## [learner.lora]" in page


def test_every_command_says_what_it_does_and_what_each_option_means() -> None:
    page = commands_page()
    assert "| `--samples <int range>` | Completions of each problem. [default: 64; x>=1] |" in page
    assert "## verge evaluate" not in page, "a command that `verge up` starts is no user's"
    for block in page.split("\n## ")[1:]:
        name, _, text = block.partition("\n\n")
        assert text.strip(), f"{name} says nothing of itself"
        assert not text.startswith("|"), f"{name} says nothing of itself"
        for row in text.splitlines():
            assert not row.endswith("|  |"), f"{name}: {row} says nothing"
