"""The sweep file's sections and fields, with their defaults and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raysweep.budget import GUIDED_TRIALS, MeasurementWindow, SearchBudget
from raysweep.candidate import ZERO_STAGES
from raysweep.constraint import HPZ_KEY, OFFLOAD_KEY
from raysweep.ds_config import AUTO_SIZES, FILLED_KEYS
from raysweep.model_schema import LOOP_KINDS, AnyModel, GptModel, HfModel
from raysweep.objective import Goal, Objective
from raysweep.section import NotNegative, Positive, Section
from raysweep.submit_schema import SubmitSection
from raysweep.tracker_schema import TrackersSection
from raysweep.units import ByteSize, Count

AXIS_OF = {OFFLOAD_KEY: "offload_optimizer", HPZ_KEY: "zero_hpz_partition_size"}
"""DeepSpeed's key -> the axis of the space that sets it."""


Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]


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
    concurrent_groups: Positive = 1
    """Worker groups that search at the same time, each on nodes of its own. Confirmation uses one."""

    @property
    def busy(self) -> int:
        """Workers that search at the same time."""
        return self.count * self.concurrent_groups


class SpaceSection(Section):
    """The choices of each axis; every combination is a candidate."""

    zero_stage: list[Count] = Field(min_length=1)
    activation_checkpoint_interval: list[NotNegative] = Field(default=[0], min_length=1)
    micro_batch_size_per_gpu: list[Positive] = Field(min_length=1)
    gradient_accumulation_steps: list[Positive] = Field(default=[1], min_length=1)
    """Only with `global_batch_size: free`; a fixed global batch decides the accumulation."""
    offload_optimizer: list[Literal["none", "cpu"]] = Field(default=["none"], min_length=1)
    """Where the optimizer's states live: on the device, or in host memory. From stage 1 on."""
    zero_hpz_partition_size: list[Positive] = Field(default=[1], min_length=1)
    """Workers over which stage 3 keeps a second copy of its parameters: 1 is none; the workers of a node are usual."""
    attn_implementation: list[Attention] | None = Field(default=None, min_length=1)
    """Attention of transformers, for kind hf. Not given: that of `model.attn_implementation`."""
    torch_compile: list[bool] = Field(default=[False], min_length=1)
    """Whether each block is compiled by torch.compile, below stage 3. Not for kinds trainer and loop."""
    world_size: list[Positive] | None = Field(default=None, min_length=1)
    """Workers that train a candidate, at most workers.count, which it is where not given."""
    deepspeed: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Further axes: DeepSpeed keys by dotted path, e.g. zero_optimization.reduce_bucket_size: [auto, 5e8]."""
    constraints: list[str] = Field(default_factory=list)
    """Expressions over the axes that a candidate must keep, e.g. `zero_stage < 3 or micro_batch_size_per_gpu >= 4`."""

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
            if key in (OFFLOAD_KEY, HPZ_KEY):
                raise ValueError(f"{key} has an axis of its own: space.{AXIS_OF[key]}")
            if "auto" in axes[key] and key not in AUTO_SIZES:
                raise ValueError(f"{key} has no auto; those with one are {', '.join(AUTO_SIZES)}")
        return axes


class SearchSection(Section):
    """How candidates are chosen, and the most that may be spent."""

    method: Literal["guided", "grid", "random", "optuna"] = "guided"
    """guided: by a model of the step time. grid: every admitted candidate. random: a seeded sample. optuna: TPE."""
    seed: int = 0
    trials: Positive | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    worker_hours: Annotated[float, Field(gt=0)] | None = None
    racing: bool | None = None
    """Stop what is far behind the best while it runs, and measure on what is not told from it; guided does."""
    confirm: bool = True
    """Measure the finalists in three fresh groups before one of them is called best."""

    def most_trials(self) -> int | None:
        """Most candidates to launch; None for no limit. The grid has none."""
        if self.method == "grid":
            return None
        return GUIDED_TRIALS if self.method == "guided" and self.trials is None else self.trials

    def races(self) -> bool:
        """Whether candidates race; where nothing is said, those of a guided search."""
        return self.method == "guided" if self.racing is None else self.racing

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


class ObjectiveSection(Section):
    """What the best candidate is. A bare goal stands for the section: `objective: samples_per_s`."""

    goal: Goal = Goal.SAMPLES_PER_S
    price_per_worker_hour: Annotated[float, Field(gt=0)] | None = None
    """For samples_per_currency_unit."""
    currency: str | None = None
    """Named in reports, e.g. EUR."""
    at_least_samples_per_s: Annotated[float, Field(gt=0)] | None = None
    """For peak_memory: the least memory among the candidates that reach this."""

    @model_validator(mode="after")
    def _goal_has_what_it_needs(self) -> ObjectiveSection:
        needs = {
            Goal.SAMPLES_PER_CURRENCY_UNIT: "price_per_worker_hour",
            Goal.PEAK_MEMORY: "at_least_samples_per_s",
        }
        for goal, field in needs.items():
            given = getattr(self, field) is not None
            if given != (goal is self.goal):
                lacks = f"goal {self.goal} needs objective.{field}"
                raise ValueError(lacks if not given else f"objective.{field} is for goal {goal} only")
        return self

    def noun(self) -> Objective:
        """The objective as our noun."""
        return Objective(**self.model_dump())


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
    memory_model: Literal["auto", "closed_form", "trace"] = "auto"
    """How `raysweep run` predicts memory. auto: traces what the closed form leaves open, in a sweep above 15 min."""
    deepspeed: dict[str, Any] | str = Field(default_factory=dict)
    """Base DeepSpeed config, inline or the path of a JSON file (relative to this file)."""
    space: SpaceSection
    search: SearchSection = SearchSection()
    measure: MeasureSection = MeasureSection()
    launcher: Literal["warm", "fresh", "in_process"] = "warm"
    objective: ObjectiveSection = ObjectiveSection()
    allow_loss_difference: bool = False
    """Let a candidate win whose loss differs from that of the others with the same global batch."""
    results: str | None = None
    """Results folder or pyarrow.fs URI; results/<name> where not given."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables set before a worker starts (NCCL_*, OMP_NUM_THREADS, allocator settings); recorded and exported."""
    cluster: ClusterSection = ClusterSection()
    submit: SubmitSection = SubmitSection()
    trackers: TrackersSection = TrackersSection()

    @field_validator("objective", mode="before")
    @classmethod
    def _bare_goal(cls, value: Any) -> Any:
        return {"goal": value} if isinstance(value, str) else value

    @field_validator("environment", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        # `yes`, `null` and lists are left to be refused: what they mean in a shell is anybody's guess.
        if not isinstance(value, dict):
            return value
        return {k: str(v) if type(v) in (int, float) else v for k, v in value.items()}

    @model_validator(mode="after")
    def _sections_agree(self) -> SweepFile:
        if self.launcher == "in_process" and self.workers.count != 1:
            raise ValueError("launcher in_process is one process, so workers.count must be 1")
        if self.global_batch_size != "free" and self.space.gradient_accumulation_steps != [1]:
            raise ValueError("space.gradient_accumulation_steps needs global_batch_size: free")
        if self.data.kind == "text" and isinstance(self.model, GptModel) and self.model.vocab_size < 256:
            raise ValueError("text data has 256 byte values, so model.vocab_size must be at least 256")
        self._check_program_axes()
        positions = self.model.positions if isinstance(self.model, GptModel) else None
        if positions is not None and positions < self.sequence_length:
            raise ValueError(f"model.positions {positions} is below sequence_length {self.sequence_length}")
        return self

    def _check_program_axes(self) -> None:
        if self.space.attn_implementation is not None:
            if not isinstance(self.model, HfModel):
                raise ValueError("space.attn_implementation is for models of kind hf, whose attention transformers has")
            if self.model.attn_implementation is not None:
                raise ValueError("model.attn_implementation and space.attn_implementation: give one of them")
        if any(self.space.torch_compile) and self.model.kind in LOOP_KINDS:
            raise ValueError(f"space.torch_compile is not for kind {self.model.kind}: its loop builds its own engine")
        by_price = self.objective.goal is Goal.SAMPLES_PER_CURRENCY_UNIT
        by_rate = self.search.method in ("guided", "optuna") or self.search.races()
        if by_price and by_rate and len(set(self.space.world_size or [0])) > 1:
            raise ValueError(
                "a guided search, optuna and racing go by samples/s, which is no order of samples for money with "
                "several numbers of workers: set search.method to grid or random, and no racing"
            )
