"""Checks the objects that `run`, `simulate` and `Autopilot` take: policy, cloud and observers.

`elastream.settings` checks all other values.
"""

from inspect import getattr_static
from typing import cast

from elastream.clouds.provider import Cloud, Provider, SupportsOpen, as_cloud, lacks_as_provider
from elastream.core.plant import Policy, SupportsPlan, as_policy
from elastream.documents.registry import POLICY
from elastream.errors import InputError
from elastream.settings import Kind, shown

OBSERVES = ("started", "observed", "decided", "ended")


def check_type(name: str, value: object, *types: type, wanted: str) -> None:
    """Raise InputError if the argument `name` is of none of `types`."""
    Kind(types, wanted).read(name, value)


def _refuse_class(name: str, value: object) -> None:
    """Raise InputError if `value` is a class instead of an object."""
    if isinstance(value, type):
        raise InputError(f"{name} is the class {value.__name__}; it must be an object, such as {value.__name__}()", (name,))


def check_policy(policy: object) -> Policy | None:
    """Return `policy` as a policy; None stands for the default one. Raises InputError if it is none."""
    _refuse_class("policy", policy)
    if policy is None or isinstance(policy, Policy):
        return policy
    if wrong := POLICY.unfit(policy):
        raise InputError(f"policy is {shown(policy)}; it must be a policy, such as Threshold(): {wrong}", ("policy",))
    return as_policy(cast(SupportsPlan, policy))


def check_cloud(cloud: object) -> Cloud:
    """Return `cloud` as a description of hosts. Raises InputError if it is none."""
    _refuse_class("cloud", cloud)
    if isinstance(cloud, Cloud):
        return cloud
    if not callable(getattr_static(cloud, "open", None)):
        raise InputError(f"cloud is {shown(cloud)}; it must be a cloud, such as Local()", ("cloud",))
    return as_cloud(cast(SupportsOpen, cloud))


def check_hosts(cloud: object) -> Cloud | Provider | None:
    """Return `cloud` as a description of hosts, or as a provider that runs. Raises InputError if it is neither."""
    if cloud is not None and not isinstance(cloud, type) and not lacks_as_provider(cloud):
        return cast(Provider, cloud)
    return None if cloud is None else check_cloud(cloud)


def check_observers(observers: object) -> None:
    """Raise InputError if `observers` is no list, or one of them is no observer."""
    check_type("observers", observers, list, tuple, wanted="a list of observers")
    assert isinstance(observers, list | tuple)
    for each in observers:
        if missing := [name for name in OBSERVES if not callable(getattr(each, name, None))]:
            raise InputError(f"observers: {shown(each)} is no observer: it has no {', '.join(missing)}", ("observers",))
