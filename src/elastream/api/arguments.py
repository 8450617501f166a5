"""Checks of the objects that `run` and `Autopilot` take. `elastream.settings` checks all other values."""

from inspect import getattr_static
from typing import cast

from elastream.clouds.provider import Cloud, Provider, SupportsOpen, as_cloud, lacks_as_provider
from elastream.core.members import missing_member
from elastream.core.plant import POLICY_MEMBERS, Policy, SupportsPlan, as_policy
from elastream.errors import InputError
from elastream.settings import Kind, shown

OBSERVER_METHODS = ("started", "observed", "decided", "ended")


def check_type(name: str, value: object, *types: type, description: str) -> None:
    Kind(types, description).read(name, value)


def _check_instance(name: str, value: object) -> None:
    if isinstance(value, type):
        raise InputError(f"{name} is the class {value.__name__}; it must be an object, such as {value.__name__}()", (name,))


def check_policy(policy: object) -> Policy | None:
    """Return `policy` with all members of a policy; None stands for the default.

    Text is a policy as on the command line, such as `"threshold"` or `"static:4"`. Raises InputError if it is none.
    """
    _check_instance("policy", policy)
    if isinstance(policy, str):
        from elastream.documents.registry import POLICY, made, named_in
        from elastream.documents.user_code import References

        return cast(Policy, made(POLICY, *named_in(policy, POLICY), References()))
    if policy is None or isinstance(policy, Policy):
        return policy
    if wrong := missing_member(policy, POLICY_MEMBERS):
        raise InputError(f"policy is {shown(policy)}; it must be a policy, such as Threshold(): {wrong}", ("policy",))
    return as_policy(cast(SupportsPlan, policy))


def check_cloud(cloud: object) -> Cloud:
    """Return `cloud` with all members of a cloud. Raises InputError if it is none."""
    _check_instance("cloud", cloud)
    if isinstance(cloud, Cloud):
        return cloud
    if not callable(getattr_static(cloud, "open", None)):
        raise InputError(f"cloud is {shown(cloud)}; it must be a cloud, such as Local()", ("cloud",))
    return as_cloud(cast(SupportsOpen, cloud))


def check_hosts(cloud: object) -> Cloud | Provider | None:
    """Return `cloud` as a cloud or as a running provider. Raises InputError if it is neither."""
    if cloud is not None and not isinstance(cloud, type) and not lacks_as_provider(cloud):
        return cast(Provider, cloud)
    return None if cloud is None else check_cloud(cloud)


def check_observers(observers: object) -> None:
    check_type("observers", observers, list, tuple, description="a list of observers")
    assert isinstance(observers, list | tuple)
    for each in observers:
        if missing := [name for name in OBSERVER_METHODS if not callable(getattr(each, name, None))]:
            raise InputError(f"observers: {shown(each)} is not an observer: it has no {', '.join(missing)}", ("observers",))
