"""The DeepSpeed settings that a memory prediction depends on, with DeepSpeed's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """The DeepSpeed settings that change a peak, with DeepSpeed 0.19.8's defaults (sizes in elements)."""

    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None
    """None is DeepSpeed's own choice: on at stage 3, off below."""
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    zero_hpz_partition_size: int = 1
    fp32_grad_accumulation: bool = False
    optimizer_on_host: bool = False
    optimizer_host_share: float = 1.0
    """`offload_optimizer.ratio`: the share of the optimizer that stage 3 keeps on the host."""
    parameters_on_host: bool = False

    @classmethod
    def from_ds_config(cls, ds_config: Mapping[str, Any]) -> ZeroSettings:
        """The settings of a DeepSpeed config; what it leaves out has DeepSpeed's default."""
        section = ds_config.get("zero_optimization", {})
        names = [name for name in cls.__slots__ if name in section]
        accumulation = ds_config.get("data_types", {}).get("grad_accum_dtype")
        optimizer, parameters = (section.get(name) or {} for name in ("offload_optimizer", "offload_param"))
        return cls(
            **{name: section[name] for name in names},
            fp32_grad_accumulation=accumulation == "fp32",
            optimizer_on_host=optimizer.get("device", "none") != "none",
            optimizer_host_share=optimizer.get("ratio", 1.0),
            parameters_on_host=parameters.get("device", "none") != "none",
        )

    def overlaps(self, zero_stage: int) -> bool:
        """Whether communication overlaps with backward at a stage."""
        return zero_stage == 3 if self.overlap_comm is None else self.overlap_comm
