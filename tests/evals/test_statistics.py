import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.statistics import Weighted, geometric_mean, mean, median, percentile, relative_spread, wilson_range

samples = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 10.0), (0.5, 25.0), (0.9, 37.0), (0.99, 39.7), (1.0, 40.0)],
)
def test_a_percentile_is_interpolated_between_neighbours(share, expected):
    assert percentile([10.0, 20.0, 30.0, 40.0], share) == pytest.approx(expected)


def test_every_percentile_of_one_sample_is_that_sample():
    assert [percentile([7.5], share) for share in (0.0, 0.5, 0.99, 1.0)] == [7.5] * 4


@given(samples, st.floats(min_value=0, max_value=1))
def test_a_percentile_never_leaves_the_range_of_its_samples(values, share):
    assert min(values) <= percentile(sorted(values), share) <= max(values)


@given(samples)
def test_percentiles_never_fall_as_the_share_rises(values):
    ordered = sorted(values)
    found = [percentile(ordered, share / 20) for share in range(21)]
    tolerance = 1e-6 * max(1.0, *map(abs, values))
    assert all(later >= earlier - tolerance for earlier, later in itertools.pairwise(found))


def test_no_samples_have_no_mean_and_no_median():
    assert (mean([]), median([]), geometric_mean([])) == (None, None, None)


def test_the_median_does_not_need_sorted_samples():
    assert median([9.0, 1.0, 4.0]) == 4.0


def test_the_geometric_mean_of_speeds():
    assert geometric_mean([10.0, 1000.0]) == pytest.approx(100.0)


@pytest.mark.parametrize("values", [[1.0, 0.0], [2.0, -1.0]])
def test_a_speed_of_nothing_has_no_geometric_mean(values):
    assert geometric_mean(values) is None


def test_the_spread_is_relative_to_the_mean():
    assert relative_spread([90.0, 100.0, 110.0]) == pytest.approx(0.2)
    assert relative_spread([100.0]) is None
    assert relative_spread([5.0, 5.0]) == 0


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    # Worked out by hand from Wilson's formula with z = 1.96.
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_range(count, of, low, high):
    assert wilson_range(count, of) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.integers(1, 2000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_wilsons_range_holds_the_share_and_stays_between_0_and_1(seen):
    count, of = seen
    low, high = wilson_range(count, of)
    assert 0 <= low <= count / of <= high <= 1


@given(st.lists(st.tuples(st.floats(min_value=0, max_value=1e6), st.integers(0, 5)), max_size=20))
def test_weighted_samples_are_those_of_the_list_with_all_repetitions(pairs):
    weighted = Weighted(pairs)
    repeated = sorted(value for value, count in pairs for _ in range(count))
    assert len(weighted) == len(repeated)
    assert weighted.mean() == (pytest.approx(mean(repeated)) if repeated else None)
    for share in (0.0, 0.5, 0.9, 0.99, 1.0) if repeated else ():
        assert weighted.percentile(share) == percentile(repeated, share)
