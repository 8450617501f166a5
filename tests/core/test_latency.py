"""What latencies count from is said beside them."""

from elastream.core.latency import Basis, basis_text, is_bound, weakest


def test_a_basis_that_all_sources_share_is_said_once_and_different_ones_by_source():
    assert basis_text({}) == ""
    assert basis_text({"a": Basis.DUE, "b": Basis.DUE}) == "from due times"
    assert basis_text({"a": Basis.BOUND}) == "upper bound"
    assert basis_text({"a": Basis.DUE, "b": Basis.BOUND}) == "a: due times, b: upper bound"


def test_one_source_with_a_bound_makes_the_whole_a_bound():
    assert is_bound({"a": Basis.DUE, "b": Basis.BOUND})
    assert not is_bound({"a": Basis.TIMESTAMPS})


def test_a_run_is_as_exact_as_its_least_exact_observation():
    seen = [{"a": Basis.DUE}, {"a": Basis.DUE, "b": Basis.TIMESTAMPS}, {"b": Basis.BOUND}, {"b": Basis.TIMESTAMPS}]
    assert weakest(seen) == {"a": Basis.DUE, "b": Basis.BOUND}
