"""Assumptions as they are multiplied and listed."""

from dataclasses import dataclass

from elastream_papers.harness.assumptions import FACTORS, assumed, assumption_table, drawn, values, variations


@dataclass(frozen=True)
class Given:
    """Two, one of which is a share."""

    work: float = assumed(3.0, "s", "a guess")
    share: float = assumed(0.6, "of all", "another", most=1.0)


def test_each_is_multiplied_in_turn_up_to_its_largest_value():
    assert variations(Given()) == {
        **{("work", factor): Given(work=3.0 * factor) for factor in FACTORS},
        **{("share", factor): Given(share=min(0.6 * factor, 1.0)) for factor in FACTORS},
    }


def test_they_are_listed_with_unit_and_reason():
    assert values(Given()) == {"work": 3.0, "share": 0.6}
    assert assumption_table(Given()).rows[0] == ("work", "3", "s", "a guess")


def test_all_are_drawn_at_once_within_half_of_their_values():
    draws = [drawn(Given(), seed) for seed in range(200)]
    assert drawn(Given(), 3) == draws[3]
    assert all(1.5 <= each.work <= 4.5 and 0.3 <= each.share <= 0.9 for each in draws)
    assert max(each.work for each in draws) > 4.4 > 1.6 > min(each.work for each in draws)
