"""The Parquet columns, their units in their names, and the version of the schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pyarrow as pa

from raysweep.results.records import TrialRecord
from raysweep.serde import canonical_json, from_dict, to_dict
from raysweep.trial import Measurement

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning or goes; a new column leaves it as it is."""

_FIGURE_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("samples_per_s", pa.float64()),
    ("tokens_per_s", pa.float64()),
    ("nonpadding_tokens_per_s", pa.float64()),
    ("step_time_s_median", pa.float64()),
    ("step_time_s_iqr", pa.float64()),
    ("step_times_s", pa.list_(pa.float64())),
    ("measured_steps", pa.int64()),
    ("warmup_steps", pa.int64()),
    ("skipped_steps", pa.int64()),
    ("cpu_time_s", pa.float64()),
    ("first_loss", pa.float64()),
    ("loss_at_step_5", pa.float64()),
    ("peak_memory_bytes", pa.int64()),
    ("build_peak_bytes", pa.int64()),
    ("resting_bytes", pa.int64()),
    ("peak_phase", pa.string()),
    ("peak_rank", pa.int64()),
    ("peak_node", pa.string()),
    ("recomputed_blocks", pa.int64()),
    ("build_s", pa.float64()),
    ("left_behind_bytes", pa.int64()),
    ("reserved_bytes", pa.int64()),
    ("device_used_bytes", pa.int64()),
    ("memory_pressure", pa.bool_()),
    ("cycled_data", pa.bool_()),
    ("random_forward", pa.bool_()),
    ("window_end", pa.string()),
    ("data_s", pa.float64()),
    ("device", pa.string()),
)

_MEASUREMENT_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("candidate_id", pa.string()),
    ("phase", pa.string()),
    ("round", pa.int64()),
    ("group_id", pa.string()),
    ("position_in_group", pa.int64()),
    ("status", pa.string()),
    ("failure_kind", pa.string()),
    ("memory_kind", pa.string()),
    ("reason", pa.string()),
    *_FIGURE_COLUMNS,
    ("ds_config_sha256", pa.string()),
    ("worker_pids", pa.list_(pa.int64())),
    ("nodes", pa.list_(pa.string())),
    ("log_paths", pa.list_(pa.string())),
    ("failures", pa.string()),
    ("probe", pa.string()),
    ("started_at", pa.string()),
    ("wall_s", pa.float64()),
    ("waited_s", pa.float64()),
)

_TRIAL_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("candidate_id", pa.string()),
    ("zero_stage", pa.int64()),
    ("activation_checkpoint_interval", pa.int64()),
    ("micro_batch_size_per_gpu", pa.int64()),
    ("gradient_accumulation_steps", pa.int64()),
    ("deepspeed", pa.string()),
    ("attn_implementation", pa.string()),
    ("torch_compile", pa.bool_()),
    ("world_size", pa.int64()),
    ("global_batch_size", pa.int64()),
    ("status", pa.string()),
    ("skip_rule", pa.string()),
    ("failure_kind", pa.string()),
    ("memory_kind", pa.string()),
    ("reason", pa.string()),
    ("samples_per_s", pa.float64()),
    ("confirmed", pa.bool_()),
    ("confirmed_samples_per_s", pa.float64()),
    ("confirmed_samples_per_s_low", pa.float64()),
    ("confirmed_samples_per_s_high", pa.float64()),
    ("tokens_per_s", pa.float64()),
    ("nonpadding_tokens_per_s", pa.float64()),
    ("step_time_s_median", pa.float64()),
    ("step_time_s_iqr", pa.float64()),
    ("measured_steps", pa.int64()),
    ("cpu_time_s", pa.float64()),
    ("first_loss", pa.float64()),
    ("loss_at_step_5", pa.float64()),
    ("loss_parity", pa.bool_()),
    ("scaling_efficiency", pa.float64()),
    ("peak_memory_bytes", pa.int64()),
    ("estimated_memory_bytes", pa.int64()),
    ("estimated_peak_terms", pa.string()),
    ("estimated_sent_bytes_per_step", pa.int64()),
    ("memory_budget_bytes", pa.int64()),
    ("recomputed_blocks", pa.int64()),
    ("skipped_steps", pa.int64()),
    ("group_id", pa.string()),
    ("group_end_reason", pa.string()),
    ("peak_rank", pa.int64()),
    ("peak_node", pa.string()),
    ("wall_s", pa.float64()),
    ("started_at", pa.string()),
    ("versions", pa.string()),
)


def measurements_schema() -> pa.Schema:
    """Schema of `measurements.parquet`: one row a launch."""
    return pa.schema(_MEASUREMENT_COLUMNS, metadata={"schema_version": str(SCHEMA_VERSION)})


def trials_schema() -> pa.Schema:
    """Schema of `trials.parquet`: one row a candidate."""
    return pa.schema(_TRIAL_COLUMNS, metadata={"schema_version": str(SCHEMA_VERSION)})


def measurements_table(measurements: Iterable[Measurement]) -> pa.Table:
    """The launches as a table."""
    return pa.Table.from_pylist([_measurement_row(each) for each in measurements], schema=measurements_schema())


def trials_table(records: Iterable[TrialRecord]) -> pa.Table:
    """The records as a table."""
    return pa.Table.from_pylist([to_dict(record) for record in records], schema=trials_schema())


def records_of(table: pa.Table) -> list[TrialRecord]:
    """The records that a table of trials holds; columns of a later version are left out."""
    known = {each.name for each in fields(TrialRecord)}
    rows = ({name: value for name, value in row.items() if name in known} for row in table.to_pylist())
    return [from_dict(TrialRecord, row) for row in rows]


def _measurement_row(measurement: Measurement) -> dict[str, Any]:
    """One flat row; what a launch and its figures both tell is taken from the launch where it has it."""
    row = to_dict(measurement)
    figures = row.pop("figures") or {}
    told = {name: value for name, value in row.items() if value not in (None, [])}
    texts = {name: canonical_json(row[name]) for name in ("failures", "probe") if row[name] is not None}
    return row | figures | told | texts
