"""The rooms' import arrows (DESIGN §2), read from the source so that lazy imports count too."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"gating", "store", "actors", "learner", "ops"}
MAY_IMPORT = {
    "gating": set(),
    "store": {"gating"},
    "actors": {"store", "gating"},
    "learner": {"store", "gating"},
    "ops": {"store", "gating", "actors", "learner"},
}


def imported_rooms(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} & ROOMS


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, f"room {room} has no code"
    offenders = {
        str(path.relative_to(ROOT)): forbidden
        for path in files
        if (forbidden := imported_rooms(path) - MAY_IMPORT[room] - {room})
    }
    assert not offenders


def test_the_arrow_test_sees_a_lazy_import(tmp_path: Path) -> None:
    source = tmp_path / "lazy.py"
    source.write_text("def f():\n    from learner.loop import run_learner\n    return run_learner\n")
    assert imported_rooms(source) == {"learner"}
