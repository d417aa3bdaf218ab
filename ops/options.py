"""Options that several commands share."""

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override one field; repeat for more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
