"""Whose a file is when neither its name nor its folder says it: nova-compute's or the controller's, by its content."""

from __future__ import annotations

from gpuyard.site.lint.alias import aliases
from gpuyard.site.lint.device_spec import device_specs
from gpuyard.site.lint.model import API, COMPUTE, Subject, View

# Of these, a file that is only a hypervisor's has none.
OF_CONTROLLER = (
    ("filter_scheduler", "enabled_filters"),
    ("filter_scheduler", "available_filters"),
    ("quota", "driver"),
    ("quota", "unified_limits_resource_list"),
)


def looks_like(view: View) -> str | None:
    """The service that a view is of, or that it seems to be of: with a device_spec nova-compute, with aliases or what
    the scheduler or quotas read nova-api; None when it has neither."""
    if view.service is not None:
        return view.service
    if device_specs(view).set:
        return COMPUTE
    if aliases(view).set or any(view.last(*place) for place in OF_CONTROLLER):
        return API
    return None


def of_controller(subject: Subject, service: str) -> list[View]:
    """The views that one of the controller's services may read, without those of hypervisors where there are others."""
    given = subject.of(service)
    return [view for view in given if looks_like(view) in (service, API)] or given
