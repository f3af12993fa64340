"""The work of a step: what each axis adds, against the formulas."""

from __future__ import annotations

from builders import make_candidate, make_workload

from raysweep.step_work import StepWork, step_work
from raysweep.workload import gpt_shape
from raysweep.zero_settings import ZeroSettings

SHAPE = gpt_shape(blocks=4, hidden=32, vocab_size=256, positions=16, tied=True)


def _work(reduce_bucket_size: int = 10_000, **changes: object) -> StepWork:
    settings = ZeroSettings(reduce_bucket_size=reduce_bucket_size)
    return step_work(make_candidate(**changes), make_workload(), settings)


def test_flops_are_six_a_parameter_and_token_and_causal_attention() -> None:
    tokens = 2 * 16
    attention = 12 * 16 * 32 / 2
    expected = tokens * (6 * 256 * 32 + 4 * (6 * SHAPE.block_parameters + attention))
    assert _work().compute_flops == expected
    assert _work(micro_batch_size_per_gpu=1, gradient_accumulation_steps=2).compute_flops == expected


def test_to_recompute_every_block_is_a_third_of_the_blocks_more() -> None:
    nothing, every, second = (_work(activation_checkpoint_interval=k) for k in (0, 1, 2))
    assert nothing.recompute_flops == 0
    assert second.recompute_flops == every.recompute_flops / 2
    blocks_only = every.compute_flops - 2 * 16 * 6 * 256 * 32
    assert abs(every.recompute_flops - blocks_only / 3) < 1
    assert every.block_passes == nothing.block_passes + 4 / 3


def test_accumulation_repeats_the_passes_and_the_reductions_of_stage_2_only() -> None:
    assert _work(gradient_accumulation_steps=4).block_passes == 4 * _work().block_passes
    once, often = (_work(zero_stage=1, gradient_accumulation_steps=g) for g in (1, 4))
    assert (once.reduce_bytes, once.collectives) == (often.reduce_bytes, often.collectives)
    once, often = (_work(zero_stage=2, gradient_accumulation_steps=g) for g in (1, 4))
    assert often.reduce_bytes == 3 * once.reduce_bytes  # (4 x 4 + 2) P against 6 P
    assert often.collectives - 1 == 4 * (once.collectives - 1)


def test_stage_3_gathers_where_the_others_reduce() -> None:
    stage_1, stage_3 = _work(zero_stage=1), _work(zero_stage=3)
    assert stage_1.gather_bytes == stage_1.gather_calls == stage_3.reduce_bytes == stage_3.collectives == 0
    assert stage_3.gather_bytes > 0 and stage_3.gather_calls == 2 * 5


def test_gradient_hooks_run_at_stages_1_and_2_in_every_micro_step() -> None:
    assert _work(zero_stage=0).gradient_hooks == _work(zero_stage=3).gradient_hooks == 0
    for stage in (1, 2):
        assert _work(zero_stage=stage, gradient_accumulation_steps=4).gradient_hooks == 4 * 5


def test_the_optimizer_is_shared_from_stage_1_on() -> None:
    assert _work(zero_stage=0).optimizer_bytes == 2 * _work(zero_stage=1).optimizer_bytes


def test_without_a_shape_the_axes_still_differ() -> None:
    workload = make_workload(shape=None)
    small, large = (step_work(make_candidate(micro_batch_size_per_gpu=b), workload, ZeroSettings()) for b in (1, 4))
    assert large.compute_flops == 4 * small.compute_flops
    assert large.block_passes == small.block_passes
