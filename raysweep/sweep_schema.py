"""The sweep file's sections and fields, with their defaults and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raysweep.budget import GUIDED_TRIALS, MeasurementWindow, SearchBudget
from raysweep.candidate import ZERO_STAGES
from raysweep.ds_config import FILLED_KEYS
from raysweep.model_schema import AnyModel, GptModel
from raysweep.section import NotNegative, Positive, Section
from raysweep.submit_schema import SubmitSection
from raysweep.units import ByteSize, Count


class DataSection(Section):
    """What the model trains on while it is measured. Loading is inside the measured step."""

    kind: Literal["synthetic", "text"] = "synthetic"
    path: str | None = None
    """text: a file, folder or glob, read as bytes; `stdlib` is the Python standard library, which every machine has."""

    @model_validator(mode="after")
    def _text_has_a_path(self) -> DataSection:
        if self.kind == "text" and not self.path:
            raise ValueError("text data needs a path: a file, a glob, or stdlib")
        return self


class OptimizerSection(Section):
    """The optimizer, in DeepSpeed's words: its type and parameters."""

    type: str = "AdamW"
    params: dict[str, Any] = Field(default_factory=lambda: {"lr": 1e-3})


class WorkersSection(Section):
    """How many workers train, and what each needs."""

    count: Positive
    resources_per_worker: dict[str, float] = Field(default_factory=lambda: {"CPU": 1.0})
    """Ray resources, e.g. {CPU: 4, GPU: 1}."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"


class SpaceSection(Section):
    """The choices of each axis; every combination is a candidate."""

    zero_stage: list[Count] = Field(min_length=1)
    activation_checkpoint_interval: list[NotNegative] = Field(default=[0], min_length=1)
    micro_batch_size_per_gpu: list[Positive] = Field(min_length=1)
    gradient_accumulation_steps: list[Positive] = Field(default=[1], min_length=1)
    """Only with `global_batch_size: free`; a fixed global batch decides the accumulation."""
    deepspeed: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Further axes: DeepSpeed keys by dotted path, e.g. zero_optimization.reduce_bucket_size: [2e6, 5e8]."""

    @field_validator("zero_stage")
    @classmethod
    def _known_stages(cls, stages: list[int]) -> list[int]:
        for stage in stages:
            if stage not in ZERO_STAGES:
                nearest = min(ZERO_STAGES, key=lambda known: abs(known - stage))
                raise ValueError(f"{stage} is not a ZeRO stage; stages are 0, 1, 2, 3 (nearest valid: {nearest})")
        return stages

    @field_validator("deepspeed")
    @classmethod
    def _no_axis_twice(cls, axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key in axes:
            if key in FILLED_KEYS:
                raise ValueError(f"{key} is filled from the stage, the batch and the precision, so it is no axis")
        return axes


class SearchSection(Section):
    """How candidates are chosen, and the most that may be spent."""

    method: Literal["guided", "grid", "random", "optuna"] = "guided"
    """guided: by a model of the step time. grid: every admitted candidate. random: a seeded sample. optuna: TPE."""
    seed: int = 0
    trials: Positive | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    worker_hours: Annotated[float, Field(gt=0)] | None = None
    confirm: bool = True
    """Measure the finalists in three fresh groups before one of them is called best."""

    def most_trials(self) -> int | None:
        """Most candidates to launch; None for no limit. The grid has none."""
        if self.method == "grid":
            return None
        return GUIDED_TRIALS if self.method == "guided" and self.trials is None else self.trials

    def budget(self) -> SearchBudget:
        """The limits as our noun."""
        return SearchBudget(trials=self.trials, seconds=self.seconds, worker_hours=self.worker_hours)


class MeasureSection(Section):
    """Warm-up and timed window, in optimizer steps."""

    warmup_min_steps: Positive = 3
    warmup_max_steps: Positive = 10
    measured_steps: Positive = 8
    measured_seconds: Annotated[float, Field(ge=0)] = 3.0
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long one candidate may take; by default max(30, 5 x predicted) seconds."""

    def window(self) -> MeasurementWindow:
        """The window as our noun."""
        return MeasurementWindow(
            warmup_min_steps=self.warmup_min_steps,
            warmup_max_steps=self.warmup_max_steps,
            measured_steps=self.measured_steps,
            measured_s=self.measured_seconds,
        )


class ClusterSection(Section):
    """Where the sweep runs. Nodes come from Ray; there is no hostfile."""

    address: str | None = None
    """An existing Ray cluster (`auto`, `host:port`, `ray://...`); by default a local Ray is started."""
    group_start_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    wait_for_nodes_seconds: Annotated[float, Field(ge=0)] = 0.0
    """On a cluster that grows: how long nodes for all workers are waited for before a worker group is asked for."""


class SweepFile(Section):
    """A whole sweep file."""

    name: str = Field(min_length=1)
    model: AnyModel
    data: DataSection = DataSection()
    sequence_length: Positive
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    optimizer: OptimizerSection | None = None
    seed: int = 0
    workers: WorkersSection
    global_batch_size: Positive | Literal["free"]
    """Samples in one optimizer step. Fixed: micro-batch x accumulation x workers must give it exactly."""
    memory_budget: ByteSize | Literal["auto"] = "auto"
    """Bytes that a worker may use, e.g. 1.5GiB. auto: the device's memory less 5 %."""
    deepspeed: dict[str, Any] | str = Field(default_factory=dict)
    """Base DeepSpeed config, inline or the path of a JSON file (relative to this file)."""
    space: SpaceSection
    search: SearchSection = SearchSection()
    measure: MeasureSection = MeasureSection()
    launcher: Literal["warm", "fresh", "in_process"] = "warm"
    objective: Literal["samples_per_s"] = "samples_per_s"
    allow_loss_difference: bool = False
    """Let a candidate win whose loss differs from that of the others with the same global batch."""
    results: str | None = None
    """Results folder or pyarrow.fs URI; results/<name> where not given."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables set before a worker starts (NCCL_*, OMP_NUM_THREADS, allocator settings); recorded and exported."""
    cluster: ClusterSection = ClusterSection()
    submit: SubmitSection = SubmitSection()

    @field_validator("environment", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        return {k: str(v) for k, v in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _sections_agree(self) -> SweepFile:
        if self.launcher == "in_process" and self.workers.count != 1:
            raise ValueError("launcher in_process is one process, so workers.count must be 1")
        if self.global_batch_size != "free" and self.space.gradient_accumulation_steps != [1]:
            raise ValueError("space.gradient_accumulation_steps needs global_batch_size: free")
        if self.data.kind == "text" and isinstance(self.model, GptModel) and self.model.vocab_size < 256:
            raise ValueError("text data has 256 byte values, so model.vocab_size must be at least 256")
        positions = self.model.positions if isinstance(self.model, GptModel) else None
        if positions is not None and positions < self.sequence_length:
            raise ValueError(f"model.positions {positions} is below sequence_length {self.sequence_length}")
        return self
