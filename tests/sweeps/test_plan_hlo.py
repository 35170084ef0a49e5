"""Counting what a program does: loops, fusions, kernels and collectives, of a recorded text and of programs."""

import jax
import jax.numpy as jnp
import pytest

from sweeps.plans import hlo

# What XLA for TPUs writes, shortened: a loop of 4 turns that its condition alone tells, with a Pallas kernel whose
# attributes go over several lines, and collectives in and after it.
RECORDED = """\
HloModule jit_step, is_scheduled=true, num_partitions=4

%fused (p.1: f32[8,4], p.2: f32[4]) -> f32[8,4] {
  %p.1 = f32[8,4]{1,0:T(8,128)} parameter(0)
  %p.2 = f32[4]{0:T(128)} parameter(1)
  %b.1 = f32[8,4]{1,0} broadcast(%p.2), dimensions={1}
  ROOT %m.1 = f32[8,4]{1,0:T(8,128)} multiply(%p.1, %b.1), metadata={op_name="jit(step)/jvp(mlp)/mul"}
}

%gathering (p.3: f32[8,4]) -> f32[8,16] {
  %p.3 = f32[8,4]{1,0} parameter(0)
  ROOT %all-gather.9 = f32[8,16]{1,0} all-gather(%p.3), channel_id=3, dimensions={1}
}

%body (t.1: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t.1 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%t.1), index=0
  %x.1 = f32[8,4]{1,0:T(8,128)} get-tuple-element(%t.1), index=1
  %splash_mha_fwd.7 = f32[8,4]{1,0:T(8,128)} custom-call(%x.1), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128}"
}}, metadata={op_name="jit(step)/while/body/attention/attention_splash/pallas_call"}, \
backend_config={"custom_call_config":{"body":"TUzv"}}
  %w.1 = f32[4]{0:T(128)} constant({1, 1, 1, 1})
  %fusion.1 = f32[8,4]{1,0:T(8,128)} fusion(%splash_mha_fwd.7, %w.1), kind=kLoop, calls=%fused, \
metadata={op_name="jit(step)/jvp(mlp)/mul"}, backend_config={"window_config":{"estimated_cycles":"1000"}}
  %all-reduce.1 = f32[8,4]{1,0:T(8,128)} all-reduce(%fusion.1), channel_id=1, to_apply=%add, \
metadata={op_name="jit(step)/qkv_projection/dot"}, backend_config={}
  %one.1 = s32[]{:T(128)} constant(1)
  %next.1 = s32[]{:T(128)} add(%i.1, %one.1)
  ROOT %r.1 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) tuple(%next.1, %all-reduce.1)
}

%condition (t.2: (s32[], f32[8,4])) -> pred[] {
  %end.1 = s32[]{:T(128)} constant(4)
  %t.2 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %i.2 = s32[]{:T(128)} get-tuple-element(%t.2), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.2, %end.1), direction=LT
}

ENTRY %main (x.2: f32[8,4]) -> f32[8,16] {
  %x.2 = f32[8,4]{1,0:T(8,128)} parameter(0)
  %zero.1 = s32[]{:T(128)} constant(0)
  %t.3 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) tuple(%zero.1, %x.2)
  %while.1 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) while(%t.3), condition=%condition, body=%body
  %y.1 = f32[8,4]{1,0:T(8,128)} get-tuple-element(%while.1), index=1
  %copy.1 = f32[8,4]{0,1:T(8,128)} copy(%y.1), metadata={op_name="jit(step)/optimizer/mul"}, \
backend_config={"window_config":{"estimated_cycles":"77"}}
  %all-gather-start.1 = (f32[8,4]{1,0}, f32[8,16]{1,0}) all-gather-start(%copy.1), channel_id=2, dimensions={1}
  %all-gather-done.1 = f32[8,16]{1,0} all-gather-done(%all-gather-start.1)
  ROOT %fusion.2 = f32[8,16]{1,0} fusion(%y.1), kind=kCustom, calls=%gathering
}
"""


def test_a_collective_that_is_spread_over_fusions_is_one():
    spread = RECORDED.replace("channel_id=2,", 'channel_id=2, frontend_attributes={chain_id="0"},')
    apart = spread.replace("channel_id=3,", 'channel_id=3, frontend_attributes={chain_id="1"},')
    same = spread.replace("channel_id=3,", 'channel_id=2, frontend_attributes={chain_id="0"},')
    assert hlo.count(apart).collectives["all-gather"] == (2, 2 * 512)
    assert hlo.count(same).collectives["all-gather"] == (1, 512)


def test_a_recorded_tpu_program():
    counts = hlo.count(RECORDED)
    assert counts.cycles == {"mlp": 4 * 1000, "optimizer": 77}
    assert counts.kernels == {"splash_mha_fwd": 4}
    # Four in the loop; one started apart, whose operand is not received, and one within a fusion.
    assert counts.collectives == {"all-reduce": (4, 4 * 128), "all-gather": (2, 2 * 512)}
    assert counts.endless == 0


def test_a_loop_whose_turns_nobody_tells_counts_once_and_is_told():
    unknown = RECORDED.replace("constant(4)", "parameter(1)")
    counts = hlo.count(unknown)
    assert counts.cycles["mlp"] == 1000 and counts.endless == 1


def test_a_turn_count_that_xla_tells_comes_before_the_condition():
    message = RECORDED.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}')
    assert hlo.count(message).cycles["mlp"] == 3000


@pytest.mark.parametrize("turns", [1, 7])
def test_loops_of_a_program_compiled_here(turns):
    def program(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=turns)[0]

    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    counts = hlo.count(jax.jit(program).lower(square, square).compile().as_text())
    assert not counts.cycles and not counts.collectives, "a CPU has no estimates, one device no collectives"
    assert counts.loops == pytest.approx(turns, rel=0.35 if turns > 1 else 1e-9)


def test_the_branch_that_does_more_counts():
    def program(flag, x):
        return jax.lax.cond(flag, lambda x: jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ x), x), lambda x: x, x)

    shapes = jax.ShapeDtypeStruct((), bool), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    assert hlo.count(jax.jit(program).lower(*shapes).compile().as_text()).loops > 4
