"""A project for runners in a lab, and credentials that are good for it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from gpuyard.openstack.api import CloudApi, connect

PROJECT, USER = "github-runners", "gpuyard-runners"
PASSWORD = "secret-of-the-runners"  # noqa: S105


def runners_cloud(clouds_file: Path, operator: CloudApi, folder: Path) -> Path:
    """A copy of a lab's clouds.yaml with a cloud ``runners``: an application credential of a user whose only role is
    ``member`` of PROJECT. Whatever is missing of these is made."""
    document = YAML(typ="safe").load(clouds_file)
    project = _ensure(operator, "project", PROJECT, domain_id="default")
    user = _ensure(operator, "user", USER, domain_id="default", password=PASSWORD)
    member = operator.get("identity", "/roles", name="member")["roles"][0]["id"]
    operator.request("PUT", "identity", f"/projects/{project}/users/{user}/roles/{member}")
    (lab,) = [cloud for name, cloud in document["clouds"].items() if name == operator.name]
    rest = {key: value for key, value in lab.items() if key != "auth"}
    login = {"auth_url": lab["auth"]["auth_url"]}
    password = {"username": USER, "password": PASSWORD, "user_domain_id": "default", "project_id": project}
    path = folder / "clouds.yaml"
    document["clouds"]["runners-user"] = {**rest, "auth": login | password}
    _write(path, document)
    mine = connect("runners-user", path)
    credentials = operator.get("identity", f"/users/{user}/application_credentials")["application_credentials"]
    body = {"name": f"gpuyard-{len(credentials)}", "secret": PASSWORD, "roles": [{"name": "member"}]}
    made = mine.request("POST", "identity", f"/users/{user}/application_credentials", {"application_credential": body})[
        "application_credential"
    ]
    secret = {"application_credential_id": made["id"], "application_credential_secret": PASSWORD}
    document["clouds"]["runners"] = {**rest, "auth_type": "v3applicationcredential", "auth": login | secret}
    _write(path, document)
    return path


def by_way_of(clouds: Path, nova: str) -> Path:
    """A copy of a clouds.yaml in which runners' calls to Nova go elsewhere."""
    document = YAML(typ="safe").load(clouds)
    document["clouds"]["runners"]["compute_endpoint_override"] = nova
    path = clouds.with_name("clouds-by-way-of.yaml")
    _write(path, document)
    return path


def _ensure(operator: CloudApi, kind: str, name: str, **values: str) -> str:
    rows = operator.get("identity", f"/{kind}s", name=name)[f"{kind}s"]
    if not rows:
        rows = [operator.request("POST", "identity", f"/{kind}s", {kind: {"name": name, **values}})[kind]]
    return str(rows[0]["id"])


def _write(path: Path, document: object) -> None:
    with path.open("w") as file:
        YAML().dump(document, file)


@contextmanager
def limit(operator: CloudApi, project: str | None, **resources: int) -> Iterator[None]:
    """Limits of a project for as long as the block lasts, in place of those that it has. `resources` by the ends of
    their names: ``servers``, ``CUSTOM_GPU_V100``."""
    (nova,) = operator.get("identity", "/services", type="compute")["services"]
    rows = [
        {
            "service_id": nova["id"],
            "region_id": operator.region,
            "project_id": project,
            "resource_name": name if name == "servers" else f"class:{name}",
            "resource_limit": value,
        }
        for name, value in resources.items()
    ]
    names = {row["resource_name"] for row in rows}
    for existing in operator.get("identity", "/limits")["limits"]:
        if existing["project_id"] == project and existing["resource_name"] in names:
            operator.request("DELETE", "identity", f"/limits/{existing['id']}")
    made = operator.request("POST", "identity", "/limits", {"limits": rows})["limits"]
    try:
        yield
    finally:
        for row in made:
            operator.request("DELETE", "identity", f"/limits/{row['id']}")
