"""The page's templates. Everything put into them is escaped; only `Markup` of our own making is not."""

import json
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ops.serve.svg import number

_TEMPLATES = Environment(
    loader=PackageLoader("ops.serve"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_TEMPLATES.filters["number"] = number
_TEMPLATES.filters["as_json"] = partial(json.dumps, ensure_ascii=False, indent=1)


def render(template: str, **values: Any) -> Markup:
    """A template with its values."""
    return Markup(_TEMPLATES.get_template(template).render(values))  # noqa: S704 - the template escaped every value
