"""The base of the sweep file's sections, and the numbers that they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from raysweep.units import Count

Positive = Annotated[Count, Field(ge=1)]
NotNegative = Annotated[Count, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
