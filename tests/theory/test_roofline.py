"""The least time a pass can take, and what passes over several tokens cost as measured."""

from __future__ import annotations

from dataclasses import replace

from handmade import curve, pass_times

from specviz.theory.roofline import Limits, ModelSize


def test_a_pass_waits_for_the_slower_of_moving_and_computing():
    size = ModelSize(parameters=1000, weight_bytes=2000, position_bytes=8.0, positions=50.0, attention_width=4)
    assert size.bytes_moved(2) == 2000 + 8 * 52
    # Each of two tokens: 2 · 1000; the first looks at 51 positions, the second at 52.
    assert size.operations(2) == 2 * 2000 + 4 * 4 * (51 + 52)
    assert Limits(bandwidth=100.0, peak=1e9).seconds(size, 2) == size.bytes_moved(2) / 100
    assert Limits(bandwidth=1e9, peak=100.0).seconds(size, 2) == size.operations(2) / 100


def test_limits_hold_until_any_pass_of_any_model_is_faster_than_one():
    target, draft = curve({1: 1e4, 4: 1e4}), curve({1: 1e4}, "draft")
    assert pass_times(target, draft).limits_hold and pass_times().limits_hold
    needed = target.limits.seconds(target.size, 4)
    assert pass_times(curve({1: 1e4, 4: needed}), draft).limits_hold
    assert not pass_times(curve({1: 1e4, 4: 0.99 * needed}), draft).limits_hold
    assert not pass_times(target, curve({1: 1.0}, "draft")).limits_hold
    # The spread that is drawn may not reach below the limit either.
    lucky = replace(target.points[1], low=0.5 * needed)
    assert not pass_times(replace(target, points=(target.points[0], lucky))).limits_hold


def test_passes_cost_about_one_up_to_the_first_width_that_does_not():
    assert curve({1: 1.0, 2: 1.1, 4: 1.4, 8: 1.6, 16: 1.4}).about_one == 4
    assert curve({1: 1.0, 2: 1.5, 4: 1.4}).about_one == 1
    assert curve({1: 1.0, 2: 0.9}).about_one == 2
    assert curve({}).about_one is None


def test_between_measured_widths_the_cost_is_a_straight_line_and_beyond_them_unknown():
    measured = curve({1: 2.0, 2: 2.0, 4: 3.0})
    assert [measured.ratio(width) for width in (1, 2, 3, 4, 5)] == [1.0, 1.0, 1.25, 1.5, None]
    assert curve({}).ratio(1) is None
