"""Objects that plan without being a `Policy`, and what a `Policy` has by default."""

from dataclasses import dataclass

import pytest

from elastream.core.plant import Plan, Policy, Prospect, as_policy, check_supported
from elastream.errors import DataflowError, InputError
from support.example_run import example_context


class Plain:
    name = "plain"

    def plan(self, observation, memory=None):
        return Plan(memory=memory)


class Derived(Policy):
    def plan(self, observation, memory=None):
        return Plan()


def test_a_plain_object_becomes_a_policy_with_all_defaults():
    policy = as_policy(Plain())
    assert (policy.name, policy.plan(None, 3).memory) == ("plain", 3)
    assert policy.unsupported_reason(example_context()) is None
    assert (policy.needs, policy.wants_traffic, policy.default_window, policy.partitions_a_host) == (
        frozenset(), False, False, None,
    )  # fmt: skip
    prospect = Prospect(example_context().layout, (), {})
    assert policy.prepared(prospect) is policy


def test_a_policy_stays_itself_and_is_called_as_its_class():
    policy = Derived()
    assert as_policy(policy) is policy
    assert policy.name == "Derived"


@pytest.mark.parametrize(
    ("member", "now"), [("needs", "needs"), ("unfit", "unsupported_reason"), ("exchanges", "wants_traffic")]
)
def test_a_plain_object_with_optional_members_is_refused(member, now):
    eager = type("Eager", (Plain,), {member: True})()
    with pytest.raises(InputError, match=f"Eager has '{member}': derive .* where it is called '{now}'"):
        as_policy(eager)


def test_a_dataclass_may_have_fields_in_place_of_defaults():
    @dataclass(frozen=True)
    class Named(Policy):
        name: str
        partitions_a_host: int = 4

        def plan(self, observation, memory=None):
            return Plan()

    assert (Named("mine").name, Named("mine").partitions_a_host) == ("mine", 4)
    with pytest.raises(TypeError, match="name"):
        Named()


def test_a_policy_that_cannot_work_is_refused_in_its_own_words():
    class Picky(Derived):
        name = "picky"

        def unsupported_reason(self, context):
            return "it wants more"

    with pytest.raises(DataflowError, match="policy picky: it wants more"):
        check_supported(Picky(), example_context())
    check_supported(Derived(), example_context())
    check_supported(None, example_context())
