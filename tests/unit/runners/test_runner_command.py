"""`gpuyard runner lint` and `gpuyard runner why`, as people see them; and what a site may say of runners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.model.errors import GpuyardError
from gpuyard.site.load import load_site
from gpuyard.site.problems import SiteError
from gpuyard_lab.github.server import ForgeServer
from tests.support.communities import COMMUNITY, document
from tests.support.sites import write_site

REPOSITORY = "geo-forge/geotorch-feedstock"
PERSON = "ghp_of_a_person"
NVIDIA = "ubuntu-2404-nvidia-20260914"
LARGE = "cirun-openstack-gpu-large"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_site(tmp_path, json.dumps(document({"most_idle": 2})))


def run(*arguments: object) -> tuple[int, str]:
    """Exit code, and what was printed, with the message of an error."""
    result = CliRunner().invoke(app, ["runner", *map(str, arguments)])
    if isinstance(result.exception, GpuyardError):
        return result.exception.exit_code, f"{result.output}{result.exception}"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_lint_explains_a_community(site: Path) -> None:
    code, text = run("lint", COMMUNITY, "--site", site)
    assert code == 0
    assert (
        f"{COMMUNITY}/.cirun.global.yml:25: ok: jobs that ask for cirun-openstack-gpu-2xlarge get runner "
        "'cirun-openstack-gpu-2xlarge': gpu_2xlarge with ubuntu-2404-nvidia-20260914, or else gpu_4xlarge with "
        "ubuntu-2404-nvidia-20260914 [runner]"
    ) in text
    assert "runner 'cirun-macos-m4-large' is for the cloud 'on_prem': gpuyard leaves it alone [other-cloud]" in text


def test_lint_refuses_a_site_without_runners(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    without = write_site(
        tmp_path / "other", json.dumps({key: part for key, part in document().items() if key != "runners"})
    )
    code, text = run("lint", COMMUNITY, "--site", without)
    assert (code, "there are no 'runners' in the site file" in text) == (2, True)


def test_lint_says_what_is_wrong_where_and_ends_with_3(tmp_path: Path, site: Path) -> None:
    file = tmp_path / ".cirun.yml"
    file.write_text("runners:\n  - name: a\n    cloud: openstack\n    instance_typ: gpu_huge\n    labels: [cirun-a]\n")
    code, text = run("lint", file)
    assert code == 3
    assert f"{file}:4: warning: 'instance_typ' means nothing here, and is ignored [unknown-key]" in text
    assert "-> did you mean 'instance_type'?" in text
    assert f"{file}:2: error: runner 'a' has no 'instance_type', and does not count [key-missing]" in text
    assert text.endswith("2 errors, 1 warning")
    file.write_text("runners: [{name: a, cloud: openstack, instance_type: gpu_huge, machine_image: i, labels: [l]}]")
    assert run("lint", file)[0] == 0
    code, text = run("lint", file, "--site", site, "-f", "json")
    findings = json.loads(text.partition("]\n")[0] + "]")
    # And not that jobs get nothing, as if that were fine.
    assert (code, [(finding["code"], finding["payload"]["line"], finding["remedy"]) for finding in findings]) == (
        3,
        [("flavor-unknown", 1, "did you mean 'gpu_large'?"), ("permission-unknown", 1, "")],  # a token, no app
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "has none of .cirun.yml, .cirun.global.yml, .access.yml; name a file"),
        (lambda path: path.write_bytes(b"a: b\n\xff"), ":2: not UTF-8 text"),
        (lambda path: path.write_bytes(b"#" * (2 << 20)), "larger than 1 MiB"),
    ],
)
def test_files_that_are_none(tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "file"
    make(path)
    code, text = run("lint", path)
    assert (code, says in text) == (2, True)


def test_why_not(site: Path) -> None:
    users = COMMUNITY / "users.json"
    offline = ("--site", site, "--config", COMMUNITY)
    code, text = run("why", REPOSITORY, "--label", LARGE, "--user", "mallory", *offline, "--users", users)
    assert code == 3
    users_at = "https://raw.githubusercontent.com/geo-forge/open-gpus/main/access/users.json"
    refusal = f"policy 'geotorch-gpu-policy' (line 59): user 'mallory' is not among the users in {users_at}"
    assert text.splitlines() == [
        f"runs-on: {LARGE}",
        f"  refused: {refusal}",
        f"    yes  runner '{LARGE}' ({COMMUNITY}/.cirun.global.yml, line 3) has the labels {LARGE}",
        f"    yes  the site's enrolment 'geo-forge' includes the repository {REPOSITORY}",
        "    yes  started by push: the code is the repository's own",
        f"    no   {refusal}",
    ]
    options = (*offline, "--users", users, "--role", "write")
    code, text = run("why", REPOSITORY, "--label", LARGE, "--user", "carla", *options)
    assert code == 0
    assert (
        "granted: gpu_large with ubuntu-2404-nvidia-20260914; for 6 h at most; priority 0; no booking ends it" in text
    )
    code, text = run("why", REPOSITORY, "--label", LARGE, "--user", "carla", *offline, "--users", users)
    assert (code, "cannot be told: policy 'geotorch-gpu-policy' (line 59): which role 'carla' has" in text) == (3, True)
    assert "say --role" in text
    fork = ("--event", "pull_request", "--fork", "none")
    code, text = run("why", REPOSITORY, "--label", LARGE, "--user", "carla", *options, *fork)
    assert (code, "a pull request from a fork: 'forks: everybody' of runners allows it" in text) == (0, True)


def test_why_of_every_runner_as_data(site: Path) -> None:
    code, text = run("why", "geo-forge/llvmdev-feedstock", "--user", "lea", "--team", "llvmdev", "--site", site,
                     "--config", COMMUNITY, "-f", "json")  # fmt: skip
    data = {resolution["label"]: resolution for resolution in json.loads(text)}
    assert code == 3
    granted = [label for label, resolution in data.items() if resolution["ruling"] == "granted"]
    assert granted == [LARGE, "cirun-openstack-gpu-dev"]
    assert data[LARGE]["wanted"] == {
        "kind": LARGE,
        "choices": [
            {"pool": "v100", "flavor": "gpu_large", "image": NVIDIA, "gpus": 1, "same_group": False}
        ],
        "longest_s": 21600,
        "priority": 0,
        "preemptible": False,
    }  # fmt: skip
    assert data["cirun-openstack-gpu-xlarge"]["reasons"][0].startswith("none of the policies of")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["geotorch"], "'geotorch' is no repository; write it as in"),
        (["other/geotorch"], "other/geotorch is not enrolled: the site file has geo-forge"),
        ([REPOSITORY, "--fork", "member"], "--fork is of pull requests; say --event pull_request too"),
    ],
)
def test_questions_that_are_none(site: Path, arguments: list[str], says: str) -> None:
    code, text = run("why", *arguments, "--site", site, "--config", COMMUNITY)
    assert (code, says in text) == (2, True), text
    code, text = run("why", REPOSITORY, "--role", "write", "--site", site)
    assert (code, "give --config with files too" in text) == (2, True)


def test_why_asks_github(tmp_path: Path) -> None:
    """All of it: files of the default branches, roles, teams, and a list of users in another repository."""
    with ForgeServer() as server:
        forge = server.standin.forge
        forge.personal_tokens[PERSON] = "octocat"
        forge.add_account("geo-forge").teams["llvmdev"] = {"lea"}
        access = (COMMUNITY / ".access.yml").read_text().replace("https://raw.githubusercontent.com", server.url)
        shared = forge.add_repository("geo-forge/.cirun")
        shared.files[".cirun.global.yml"] = (COMMUNITY / ".cirun.global.yml").read_text()
        shared.files[".access.yml"] = access.replace("open-gpus/main", "open-gpus/raw/main")
        forge.add_repository("geo-forge/open-gpus").files["access/users.json"] = (COMMUNITY / "users.json").read_text()
        forge.add_repository(REPOSITORY).permissions.update({"carla": "write", "mallory": "admin"})
        forge.add_repository("geo-forge/llvmdev-feedstock")
        (tmp_path / "token").write_text(PERSON)
        enrolment = {"organization": "geo-forge", "url": server.url, "token_file": str(tmp_path / "token")}
        site = write_site(tmp_path, json.dumps(document({"enrolments": [enrolment]})))
        for repository, user, expected in (
            (REPOSITORY, "carla", "granted: gpu_large"),
            (REPOSITORY, "reads-only", "user 'reads-only' has the role 'read'"),
            (REPOSITORY, "mallory", "user 'mallory' is not among the users in"),
            ("geo-forge/llvmdev-feedstock", "lea", "granted: gpu_large"),
            ("geo-forge/llvmdev-feedstock", "carla", "is not among the members of team llvmdev"),
        ):
            code, text = run("why", repository, "--label", LARGE, "--user", user, "--site", site)
            assert expected in text, text
            assert (code == 0) is expected.startswith("granted")


def problems(folder: Path, runners: Mapping[str, Any], **more: Any) -> list[str]:
    with pytest.raises(SiteError) as caught:
        load_site(write_site(folder, json.dumps(document(runners, **more), indent=1)))
    return [line.partition(": ")[2] for line in caught.value.lines]


ORG = {"organization": "geo-forge", "token_file": "t"}


@pytest.mark.parametrize(
    ("runners", "more", "says"),
    [
        ({}, {"booking": None}, "runners: runners get their GPUs from the ledger of bookings; add 'booking: {}'"),
        ({}, {"projects": {"ci": {}}}, "projects.ci: 'ci' is the project of the runners, where only gpuyard starts"),
        (
            {"sets": {"a": {"flavors": ["gpu_larg"], "images": ["i"]}}}, {},
            "runners.sets.a.flavors.0: unknown flavor 'gpu_larg'; did you mean 'gpu_large'?",
        ),
        ({"allowed": {"flavors": ["cpu_large"]}}, {}, "runners.allowed.flavors.0: flavor 'cpu_large' has no GPUs"),
        (
            {"sets": {"a": {"flavors": ["gpu_large"], "images": ["i"], "most": 1, "idle": [{"count": 2}]}}}, {},
            "runners.sets.a.idle.0.count: 2 idle runners, and the set may have 1 GPUs at once; write 1 or less",
        ),
        (
            {"sets": {name: {"flavors": ["gpu_large"], "images": ["i"]} for name in ("Gpu", "gpu")}}, {},
            "runners.sets: several sets are named 'gpu' but for letter case",
        ),
        ({"longest": "6 days"}, {}, "runners.longest: GitHub ends every job after 5 days; write less"),
        ({"repositories": {"geo-forg/*": {}}}, {}, "runners.repositories.geo-forg/*: no enrolment includes such"),
        (
            {"enrolments": [{**ORG, "url": "http://git.example.org"}]}, {},
            "runners.enrolments.0.url: http://git.example.org would be sent credentials that anybody can read",
        ),
        (
            {"enrolments": [ORG, {"repository": "geo-forge/a", "token_file": "t"}]}, {},
            "runners.enrolments.1: geo-forge/a is enrolled twice, also with the organisation geo-forge",
        ),
        (
            {"sets": {"a": {"flavors": ["gpu_large"], "images": ["i"], "idle": [{"count": 1, "hours": "9-9"}]}}}, {},
            "'9-9' are no hours of a day; write them as in '9-17', or '22-6' for a night",
        ),
        (
            {"sets": {"a": {"flavors": ["gpu_large"], "images": ["i"], "idle": [{"count": 1, "days": "fry"}]}}}, {},
            "'fry' is no day of the week",
        ),
        ({"fork": "members"}, {}, "runners.fork: unknown key; did you mean 'forks'?"),
        ({"enrolments": [{"organization": "geo-forge"}]}, {}, "say 'app' (with id and key_file) or 'token_file'"),
    ],
)  # fmt: skip
def test_what_a_site_cannot_say_of_runners(
    tmp_path: Path, runners: Mapping[str, Any], more: Mapping[str, Any], says: str
) -> None:
    messages = problems(tmp_path, runners, **more)
    assert len(messages) == 1, messages
    assert says in messages[0]


def test_a_site_may_say_all_of_it(tmp_path: Path) -> None:
    runners = {
        "sets": {"a": {"flavors": ["gpu_pair"], "images": ["i"], "idle": [{"count": 1, "hours": "22-6"}]}},
        "enrolments": [{**ORG, "url": "http://127.0.0.1:8080"}],
        "repositories": {"geo-forge/*": {"longest": "5 days"}, "*/nightly": {"share": 3}},
        "allowed": {"flavors": ["gpu_large"], "images": ["noble"]},
    }  # fmt: skip
    loaded = load_site(write_site(tmp_path, json.dumps(document(runners))))
    assert loaded.site.runners is not None
    assert loaded.site.runners.rules("Geo-Forge/NIGHTLY").share == 3
