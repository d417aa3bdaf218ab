"""The base of every section of the config."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of the TOML file: unknown keys are refused, values are fixed, docstrings are the help."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
