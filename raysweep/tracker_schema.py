"""The `trackers` section of a sweep file: the experiment trackers that are told of each candidate."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from raysweep.section import Section


class TensorboardSection(Section):
    """TensorBoard files, in the results folder."""


class MlflowSection(Section):
    """MLflow runs."""

    tracking_uri: str | None = None
    """Of the server, or a folder (`file:...`); MLflow's own default where not given."""
    experiment: str | None = None
    """Name of the experiment; that of the sweep where not given."""


class WandbSection(Section):
    """Weights & Biases runs."""

    project: str | None = None
    """Name of the project; that of the sweep where not given."""
    mode: Literal["online", "offline"] = "online"
    """offline: kept in the results folder, and sent later by `wandb sync`."""


class TrackersSection(Section):
    """Experiment trackers that are told of each candidate of the search once it is over."""

    tensorboard: TensorboardSection | None = None
    mlflow: MlflowSection | None = None
    wandb: WandbSection | None = None

    @field_validator("tensorboard", "mlflow", "wandb", mode="before")
    @classmethod
    def _true_is_all_defaults(cls, value: Any) -> Any:
        return {} if value is True else value
