"""Makes the network of the demo user's project. Ports in it are bound, and lead nowhere: hosts of the lab are recorded
ones."""

from __future__ import annotations

from gpuyard.model.world import DOMAIN
from gpuyard_lab.credentials import DEMO
from gpuyard_lab.errors import LabError
from gpuyard_lab.http import call
from gpuyard_lab.settings import Lab

NAME, CIDR = "demo", "10.20.0.0/24"


def ensure_network(lab: Lab, token: str) -> bool:
    """Make sure that the project of the demo user has a network with a subnet; return whether it has. One that is there
    is left as it is."""
    projects = call("GET", f"{lab.endpoint('keystone')}/projects?name={DEMO}&domain_id={DOMAIN}", token=token)
    (project,) = [row["id"] for row in projects.body["projects"]]
    neutron = f"{lab.url('neutron')}/v2.0"
    networks = call("GET", f"{neutron}/networks?project_id={project}", token=token).body["networks"]
    if any(network["subnets"] for network in networks):
        return True
    try:
        network = networks[0]["id"] if networks else _made(neutron, project, token)
    except LabError as error:
        if "PolicyNotAuthorized" in str(error):
            return False
        raise
    subnet = {"name": NAME, "network_id": network, "project_id": project, "ip_version": 4, "cidr": CIDR}
    call("POST", f"{neutron}/subnets", {"subnet": subnet}, token=token)
    return True


def _made(neutron: str, project: str, token: str) -> str:
    body = {"network": {"name": NAME, "project_id": project}}
    return str(call("POST", f"{neutron}/networks", body, token=token).body["network"]["id"])
