"""Who gets which runner: a community's configuration decided line by line, and the rules that nothing may break."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.finding import Severity
from gpuyard.runners.cirun.records import AccessFile, Grant, Policy
from gpuyard.runners.cirun.users import read_users, source_of
from gpuyard.runners.facts import TextFile
from gpuyard.runners.lint import lint_files, read_files
from gpuyard.runners.records import ServerChoice, Trust
from gpuyard.runners.resolve import Configuration, RepositoryFiles, Resolution, Ruling, read, resolve
from gpuyard.site.schema import Site
from tests.support.communities import COMMUNITY, LISTS, ORGANIZATION, People, community, document, job, site_of

GITHUB = "https://github.com"
NAMED = "access_control: [{resource: r, policies: [p]}]"
G, R, N, U = Ruling.GRANTED, Ruling.REFUSED, Ruling.NOT_OURS, Ruling.UNKNOWN
FEEDSTOCKS = ("autotick-test", "build-tools", "flash-raster", "gdalgpu", "geotorch", "jitmaps", "libwarp", "meshes")
PEOPLE = {"ada-maintains": "maintain", "bert-builds": "write", "reads-only": "read", "gil": "admin", "hana": "triage"}
LARGE, XLARGE, DOUBLE, QUAD, PAIR, DEV, BURST = (
    f"cirun-openstack-gpu-{size}" for size in ("large", "xlarge", "2xlarge", "4xlarge", "pair", "dev", "burst")
)
NOBODYS = "is not among the users in https://raw.githubusercontent.com/geo-forge/open-gpus/main/access/users.json"


def people() -> People:
    repositories = [f"{ORGANIZATION}/{name}-feedstock" for name in (*FEEDSTOCKS, "tilegrad", "tensormaps")]
    roles = {(repository, user): role for repository in repositories for user, role in PEOPLE.items()}
    users = (COMMUNITY / "users.json").read_text()
    return People(roles, {"llvmdev": ("lea",), "nightly": ("geo-autotick-bot",)}, {LISTS: users})


@pytest.mark.parametrize(
    ("repository", "label", "user", "event", "ruling", "says"),
    [
        # Pushes, by policies with roles and a list of users.
        ("autotick-test-feedstock", LARGE, "ada-maintains", "push", G, ""),
        ("autotick-test-feedstock", XLARGE, "ada-maintains", "push", G, ""),
        ("autotick-test-feedstock", QUAD, "ada-maintains", "push", G, ""),
        ("autotick-test-feedstock", LARGE, "Bert-Builds", "push", G, ""),
        ("AutoTick-Test-Feedstock", LARGE, "BERT-BUILDS", "push", G, ""),
        ("autotick-test-feedstock", LARGE, "mallory", "push", R, f"user 'mallory' {NOBODYS}"),
        ("autotick-test-feedstock", LARGE, "reads-only", "push", R, "has the role 'read' in geo-forge/autotick-test-f"),
        ("autotick-test-feedstock", LARGE, "carla", "push", R, "user 'carla' has no role in geo-forge/autotick-test-"),
        ("autotick-test-feedstock", PAIR, "ada-maintains", "push", R, "none of the policies of 'cirun-openstack-gpu-p"),
        ("autotick-test-feedstock", DEV, "ada-maintains", "push", R, "they are for llvmdev-feedstock, nightly"),
        ("geotorch-feedstock", DOUBLE, "ada-maintains", "push", G, ""),
        ("jitmaps-feedstock", BURST, "bert-builds", "push", G, ""),
        ("jitmaps-feedstock", PAIR, "bert-builds", "schedule", G, ""),
        ("gdalgpu-feedstock", LARGE, "ada-maintains", "push", R, "none of the policies of 'cirun-openstack-gpu-large'"),
        ("unknown-feedstock", LARGE, "ada-maintains", "push", R, "is for the repository geo-forge/unknown-feedstock"),
        # Pull requests: the policy must allow them, and its person is who started the run.
        ("autotick-test-feedstock", LARGE, "ada-maintains", "pull_request", G, ""),
        ("autotick-test-feedstock", LARGE, "mallory", "pull_request", R, f"user 'mallory' {NOBODYS}"),
        ("build-tools-feedstock", LARGE, "ada-maintains", "push", G, ""),
        ("build-tools-feedstock", LARGE, "ada-maintains", "pull_request", R, "it does not allow pull requests"),
        ("build-tools-feedstock", LARGE, "ada-maintains", "pull_request_target", R, "it does not allow pull requests"),
        # Roles alone, teams alone, users with roles.
        ("meshes-feedstock", LARGE, "gil", "push", G, ""),
        ("meshes-feedstock", LARGE, "hana", "push", R, "the role 'triage' in geo-forge/meshes-feedstock, and it wants"),
        ("llvmdev-feedstock", LARGE, "lea", "pull_request", G, ""),
        ("llvmdev-feedstock", LARGE, "ada-maintains", "push", R, "is not among the members of team llvmdev"),
        ("nightly", DEV, "geo-autotick-bot", "schedule", G, ""),
        ("nightly", DEV, "geo-autotick-bot", "pull_request", R, "it does not allow pull requests"),
        ("tilegrad-feedstock", LARGE, "hana", "push", R, "has the role 'triage' in geo-forge/tilegrad-feedstock"),
        ("tilegrad-feedstock", LARGE, "ada-maintains", "push", R, "is not among the users hana"),
        # Two policies for one repository: one that says yes is enough, and each says why not.
        ("libwarp-feedstock", LARGE, "ada-maintains", "push", G, ""),
        ("tensormaps-feedstock", LARGE, "gil", "push", R, f"user 'gil' {NOBODYS}"),
        # Somebody else's runners, and somebody else's jobs.
        ("geotorch-feedstock", "cirun-azure-windows-2xlarge", "carla", "push", N, "of the cloud azure"),
        ("packer-feedstock", "cirun-macos-m4-large", "gil", "push", N, "of the cloud on_prem"),
        ("autotick-test-feedstock", "ubuntu-latest", "ada-maintains", "push", N, "no runner has the labels"),
        ("autotick-test-feedstock", "cirun-openstack-gpu-huge", "ada-maintains", "push", N, "no runner has the labels"),
    ],
)  # fmt: skip
def test_decisions_of_a_community(
    repository: str, label: str, user: str, event: str, ruling: Ruling, says: str
) -> None:
    answer = resolve(job(repository, f"{label}--4711", actor=user, event=event), site_of(), community(), people())
    assert (answer.ruling, says in answer.reason) == (ruling, True), answer.reason
    assert (answer.spec is not None) is (ruling is G)
    assert bool(answer.reason) is (ruling is not G)
    assert answer.steps[-1].ok is (ruling is G)


def test_the_community_lints_clean() -> None:
    names = (".cirun.global.yml", ".access.yml")
    files = read_files({str(COMMUNITY / name): (COMMUNITY / name).read_text() for name in names})
    findings = lint_files(files, site_of(most_idle=2))
    assert {finding.code for finding in findings} == {"runner", "other-cloud"}
    assert {finding.severity for finding in findings} == {Severity.OK, Severity.NOTE}


def test_what_is_granted_is_what_the_file_and_the_site_say() -> None:
    site = site_of(longest="2 h", priority=3, repositories={"geo-forge/geo*": {"longest": "8 h", "preemptible": True}})
    image = "ubuntu-2404-nvidia-20260914"
    answer = resolve(job("autotick-test-feedstock", DOUBLE), site, community(), people())
    assert answer.spec is not None
    assert (answer.spec.kind, answer.spec.longest, answer.spec.priority) == (DOUBLE, timedelta(hours=2), 3)
    assert answer.spec.choices == (
        ServerChoice("v100", "gpu_2xlarge", image), ServerChoice("v100", "gpu_4xlarge", image),
    )  # fmt: skip
    assert not answer.spec.preemptible
    pair = resolve(job("jitmaps-feedstock", PAIR), site, community(), people()).spec
    assert pair is not None
    assert pair.choices == (ServerChoice("v100", "gpu_pair", image, 2, same_group=True),)
    assert pair.preemptible  # by its own word
    own = resolve(job("geotorch-feedstock", DOUBLE), site, community(), people()).spec
    assert own is not None
    assert (own.longest, own.preemptible) == (timedelta(hours=8), True)  # by the site's


def test_a_list_that_cannot_be_read_is_named() -> None:
    for files in ({}, {LISTS: "no json"}):
        answer = resolve(job("autotick-test-feedstock", LARGE), site_of(), community(), replace(people(), files=files))
        assert answer.reason.endswith(
            "(https://raw.githubusercontent.com/geo-forge/open-gpus/main/access/users.json cannot be read)"
        )


def test_github_is_asked_for_as_little_as_can_be() -> None:
    facts = people()
    resolve(job("build-tools-feedstock", LARGE, event="pull_request"), site_of(), community(), facts)
    resolve(job("unknown-feedstock", LARGE), site_of(), community(), facts)
    resolve(job("autotick-test-feedstock", "ubuntu-latest"), site_of(), community(), facts)
    assert facts.asked == []
    resolve(job("autotick-test-feedstock", LARGE, actor="mallory"), site_of(), community(), facts)
    assert facts.asked == ["file geo-forge/open-gpus main access/users.json"]
    resolve(job("tilegrad-feedstock", LARGE, actor="hana"), site_of(), community(), facts)
    assert facts.asked[1:] == ["role hana geo-forge/tilegrad-feedstock"]


def test_what_github_does_not_say_now_is_asked_again_and_refused_by_nobody() -> None:
    down = people().gone()
    unknown = resolve(job("autotick-test-feedstock", LARGE), site_of(), community(), down)
    assert (unknown.ruling, unknown.spec) == (U, None)
    assert unknown.reason == "policy 'autotick-test-policy' (line 3): GitHub does not answer"
    assert resolve(job("build-tools-feedstock", LARGE, event="pull_request"), site_of(), community(), down).ruling is R
    assert resolve(job("autotick-test-feedstock", LARGE, trust=None), site_of(), community(), people()).ruling is G
    for missing, says in (
        ({"event": ""}, "has not said yet what started the job"),
        ({"event": "pull_request", "trust": None}, "whether the job's code is from a fork"),
        ({"event": "workflow_run", "trust": None}, "whether the job's code is from a fork"),
        ({"actor": ""}, "has not said who started the job"),
    ):
        answer = resolve(job("autotick-test-feedstock", LARGE, **missing), site_of(), community(), people())
        assert (answer.ruling, says in answer.reason) == (U, True)


@pytest.mark.parametrize(
    ("forks", "association", "ruling"),
    [
        ("never", "OWNER", R),
        ("never", "", R),
        ("members", "MEMBER", G),
        ("members", "COLLABORATOR", R),
        ("members", "", U),
        ("collaborators", "collaborator", G),
        ("collaborators", "CONTRIBUTOR", R),
        ("contributors", "CONTRIBUTOR", G),
        ("contributors", "FIRST_TIME_CONTRIBUTOR", R),
        ("contributors", "NONE", R),
        ("everybody", "NONE", G),
        ("everybody", "", G),
    ],
)
def test_forks_get_what_the_site_lets_them(forks: str, association: str, ruling: Ruling) -> None:
    forked = job("autotick-test-feedstock", LARGE, event="pull_request", trust=Trust.FORK, association=association)
    answer = resolve(forked, site_of(forks=forks), community(), people())
    assert answer.ruling is ruling, answer.reason
    closed = replace(forked, repository=f"{ORGANIZATION}/build-tools-feedstock")  # whose policy allows no pull requests
    assert resolve(closed, site_of(forks=forks), community(), people()).ruling is not G
    assert resolve(replace(forked, event="workflow_run"), site_of(forks=forks), community(), people()).ruling is ruling


def test_a_forks_job_without_any_access_file_still_asks_the_site() -> None:
    own = read(
        RepositoryFiles(
            "runners: [{name: a, cloud: openstack, instance_type: gpu_large, machine_image: i, labels: [x]}]"
        )
    )
    forked = job("a", "x", event="pull_request", trust=Trust.FORK, association="NONE")
    assert resolve(forked, site_of(forks="contributors"), own, People()).ruling is R
    assert resolve(replace(forked, association="CONTRIBUTOR"), site_of(forks="contributors"), own, People()).ruling is G


def own(**more: object) -> Configuration:
    """A repository's own file with one runner, which asks for a label of its own."""
    keys = {"name": "mine", "cloud": "openstack", "instance_type": "gpu_large", "machine_image": "noble", **more}
    lines = "\n".join(f"    {key}: {value}" for key, value in keys.items())
    return read(RepositoryFiles(f"runners:\n  - labels: [cirun-mine]\n{lines}\n"))


@pytest.mark.parametrize(
    ("asked", "site", "says"),
    [
        ({"instance_type": "gpu_huge"}, {}, "the site has no flavor 'gpu_huge'"),
        ({"instance_type": "cpu_large"}, {}, "the flavor 'cpu_large' has no GPU"),
        ({}, {"allowed": {"flavors": ["gpu_pair"]}}, "the site gives jobs no flavor 'gpu_large', but gpu_pair"),
        ({}, {"allowed": {"images": ["jammy"]}}, "the site starts no jobs with the image 'noble', but with jammy"),
        ({"instance_type": "[]"}, {}, "has mistakes (.cirun.yml, line 2); 'gpuyard runner lint' says which"),
        ({"preemptible": "maybe"}, {}, "has mistakes (.cirun.yml, line 2)"),
    ],
)
def test_nothing_goes_beyond_the_site(asked: dict[str, object], site: dict[str, object], says: str) -> None:
    answer = resolve(job("a", "cirun-mine"), site_of(**site), own(**asked), People())
    assert (answer.ruling, says in answer.reason) == (R, True), answer.reason


def test_ways_that_the_site_does_not_serve_are_left_out_with_a_notice() -> None:
    answer = resolve(job("a", "cirun-mine"), site_of(), own(instance_type="[gpu_huge, gpu_pair]"), People())
    assert answer.ruling is G
    assert [choice.flavor for choice in answer.spec.choices] == ["gpu_pair"]  # type: ignore[union-attr]
    assert answer.notices == ("the site has no flavor 'gpu_huge'",)


def test_novas_name_of_a_flavor_of_whole_groups_means_the_sites() -> None:
    answer = resolve(job("a", "cirun-mine"), site_of(), own(instance_type="[gpu_pair-b, gpu_pair-a]"), People())
    assert answer.spec is not None
    assert [(choice.flavor, choice.gpus) for choice in answer.spec.choices] == [("gpu_pair", 2)]
    assert resolve(job("a", "cirun-mine"), site_of(), own(instance_type="gpu_large-a"), People()).ruling is R


def test_a_flavor_that_is_private_to_other_projects_is_not_served() -> None:
    with_private = document()
    with_private["flavors"]["gpu_large"]["projects"] = ["physics"]
    answer = resolve(job("a", "cirun-mine"), Site.model_validate(with_private), own(), People())
    assert answer.reason == "the flavor 'gpu_large' is private to other projects than that of the runners"


def test_of_two_runners_with_the_labels_the_second_is_tried_after_the_first() -> None:
    text = """\
runners:
  - {name: a, cloud: openstack, instance_type: gpu_large, machine_image: one, labels: [cirun-x, big], preemptible: true}
  - {name: w, cloud: aws, instance_type: t2.nano, machine_image: ami, labels: [cirun-x]}
  - {name: b, cloud: openstack, instance_type: gpu_pair, machine_image: two, labels: [CIRUN-X]}
"""
    answer = resolve(job("a", "Cirun-X--7"), site_of(), read(RepositoryFiles(text)), People())
    assert answer.spec is not None
    assert [(choice.flavor, choice.image) for choice in answer.spec.choices] == [
        ("gpu_large", "one"),
        ("gpu_pair", "two"),
    ]
    assert answer.spec.kind == "a"
    assert not answer.spec.preemptible  # one of the ways is not
    assert answer.notices == ("runners of aws with the same labels are left alone",)
    both = resolve(job("a", "cirun-x", "big"), site_of(), read(RepositoryFiles(text)), People())
    assert both.spec is not None
    assert [choice.flavor for choice in both.spec.choices] == ["gpu_large"]
    assert both.spec.preemptible


@pytest.mark.parametrize(
    ("labels", "ours"),
    [
        (("cirun-mine",), True),
        (("cirun-mine--1-2--3",), True),
        (("self-hosted", "linux", "x64", "cirun-mine"), True),
        (("self-hosted",), False),
        (("self-hosted", "linux", "x64"), False),
        ((), False),
        (("--cirun-mine",), False),
        (("cirun-mine", "arm64"), False),
        (("cirun-mine-too",), False),
    ],
)
def test_labels(labels: tuple[str, ...], ours: bool) -> None:
    assert (resolve(job("a", *labels), site_of(), own(), People()).ruling is G) is ours


def test_a_repositorys_own_runners_are_not_used_beside_access_rules() -> None:
    """Else whoever can push writes himself the runner that the rules keep from him."""
    text = (COMMUNITY / ".access.yml").read_text()
    trick = f"runners: [{{name: {QUAD}, cloud: openstack, instance_type: gpu_4xlarge, machine_image: i, labels: [me]}}]"
    answer = resolve(
        job("meshes-feedstock", "me", actor="gil"), site_of(), read(RepositoryFiles(trick, "", text)), people()
    )
    assert answer.ruling is R
    assert "only runners of .cirun.global.yml may be used" in answer.reason


@pytest.mark.parametrize(
    ("access", "says"),
    [
        ("policies: [", ".access.yml cannot be read, so nobody may use anything"),
        ("nonsense", "cannot be read"),
        ("", "cannot be read"),
        ("version: 1", "no entry of access_control in .access.yml names the runner"),
        ("access_control: [{resource: r, policies: [p]}]", "it has none that counts"),
        ("policies: [{id: p, repo: a}]\naccess_control: [{resource: r, policies: [p]}]", "so it is for nobody"),
        (
            "policies: [{id: p, repo: a, users: [ada-maintains], rolse: [admin]}]\n" + NAMED,
            "so it is for nobody",
        ),
        (
            "policies: [{id: p, repo: a, users: [ada-maintains], roles: 7}]\n" + NAMED,
            "so it is for nobody",
        ),
    ],
)
def test_what_is_wrong_with_access_rules_lets_nobody_in(access: str, says: str) -> None:
    shared = "runners: [{name: r, cloud: openstack, instance_type: gpu_large, machine_image: i, labels: [cirun-r]}]"
    answer = resolve(job("a", "cirun-r"), site_of(), read(RepositoryFiles(None, shared, access)), People())
    assert (answer.ruling, says in answer.reason) == (R, True), answer.reason


def test_a_site_may_demand_access_rules() -> None:
    site = site_of(enrolments=[{"organization": ORGANIZATION, "token_file": "t", "access_required": True}], sets=SETS)
    answer = resolve(job("a", "cirun-mine"), site, own(), People())
    assert answer.reason == "gpuyard sees no .access.yml in geo-forge/.cirun, and the site demands one for geo-forge"
    scale_set = job("a", "gpuyard-v100", scale_set="gpuyard-v100")
    assert resolve(scale_set, site, Configuration(), People()).ruling is R
    assert resolve(job("autotick-test-feedstock", LARGE), site, community(), people()).ruling is G


def test_an_unreadable_file_of_runners_is_a_reason_for_those_who_mean_it_only() -> None:
    broken = read(RepositoryFiles("runners: ["))
    answer = resolve(job("a", "cirun-gpu--1"), site_of(), broken, People())
    assert answer.ruling is R
    assert answer.reason.startswith(".cirun.yml:1: not YAML")
    assert resolve(job("a", "ubuntu-latest"), site_of(), broken, People()).ruling is N
    older = read(RepositoryFiles("run_only_when_triggered_by: core\nrunners: []"))
    assert "keeps people out in a way" in resolve(job("a", "cirun-gpu"), site_of(), older, People()).reason


SETS = {"gpuyard-v100": {"flavors": ["gpu_large", "gpu_pair"], "images": ["a", "b"], "longest": "1 h"}}


def test_scale_sets_are_the_sites_and_policies_may_only_allow_less() -> None:
    site = site_of(sets=SETS, allowed={"flavors": ["gpu_xlarge"]})
    set_job = job("a", "gpuyard-v100", scale_set="gpuyard-v100")
    answer = resolve(set_job, site, Configuration(), People())
    assert answer.spec is not None
    assert (answer.spec.kind, answer.spec.longest) == ("gpuyard-v100", timedelta(hours=1))
    assert [(way.flavor, way.image) for way in answer.spec.choices] == [
        ("gpu_large", "a"), ("gpu_large", "b"), ("gpu_pair", "a"), ("gpu_pair", "b"),
    ]  # fmt: skip
    assert resolve(set_job, site, community(), people()).ruling is G  # which does not name it
    named = AccessFile((Policy("p", "a", users=("bert",)),), (Grant("gpuyard-v100", ("p",)),))
    assert resolve(set_job, site, Configuration(access=named), People()).ruling is R
    assert resolve(replace(set_job, actor="bert"), site, Configuration(access=named), People()).ruling is G
    assert resolve(set_job, site, read(RepositoryFiles(access="[")), People()).ruling is R
    assert resolve(replace(set_job, scale_set="gone"), site, Configuration(), People()).reason.startswith(
        "the site file has no"
    )
    webhook = resolve(replace(set_job, scale_set=""), site, own(), People())
    assert (webhook.ruling, "the scale set 'gpuyard-v100' gets it" in webhook.reason) == (N, True)


def test_only_enrolled_repositories() -> None:
    enrolment = {"organization": ORGANIZATION, "token_file": "t", "repositories": ["geo-forge/*-feedstock"]}
    site = site_of(enrolments=[enrolment])
    answer = resolve(job("a", "cirun-mine"), site, own(), People())
    assert answer.reason == "the site's enrolment 'geo-forge' does not include the repository geo-forge/a"
    assert resolve(job("a-feedstock", "cirun-mine"), site, own(), People()).ruling is G
    assert resolve(job("a-feedstock", "cirun-mine", scope="other"), site, own(), People()).ruling is R
    without = site_of(enrolments=[{**enrolment, "cirun": False}])
    assert resolve(job("a-feedstock", "cirun-mine"), without, own(), People()).ruling is N


# What no configuration may do.

names = st.sampled_from(["a", "b", "r", "p", "q"])
policies = st.builds(
    Policy,
    id=names,
    repository=names,
    teams=st.lists(names, max_size=2).map(tuple),
    roles=st.lists(st.sampled_from(["admin", "write"]), max_size=2).map(tuple),
    users=st.lists(names, max_size=2).map(tuple),
    pull_request=st.booleans(),
)
accesses = st.builds(
    AccessFile,
    policies=st.lists(policies, max_size=4, unique_by=lambda policy: policy.id).map(tuple),
    grants=st.lists(st.builds(Grant, names, st.lists(names, max_size=3).map(tuple)), max_size=3).map(tuple),
)
CLOUD = "runners: [{name: r, cloud: openstack, instance_type: gpu_large, machine_image: i, labels: [cirun-r]}]"


SHARED = read(RepositoryFiles(None, CLOUD)).shared
SITES = {forks: site_of(forks=forks) for forks in ("never", "everybody")}


def decided(access: AccessFile | None, user: str, event: str, facts: People, forks: str = "everybody") -> Resolution:
    trust = Trust.FORK if event == "pull_request" else Trust.REPOSITORY
    cirun_job = job("a", "cirun-r", actor=user, event=event, trust=trust, association="NONE")
    return resolve(cirun_job, SITES[forks], Configuration(shared=SHARED, access=access), facts)


@given(
    access=accesses, user=names, event=st.sampled_from(["push", "pull_request"]), role=st.sampled_from(["", "write"])
)
def test_policies_only_take_away_and_say_why(access: AccessFile, user: str, event: str, role: str) -> None:
    facts = People({("geo-forge/a", user): role}, {"q": (user,)})
    answer = decided(access, user, event, facts)
    assert answer.ruling in (G, R)
    expected = any(
        policy.repository == "a"
        and (policy.pull_request or event == "push")
        and bool(policy.teams or policy.users or policy.roles)
        and (not (policy.teams or policy.users) or user in policy.users or "q" in policy.teams)
        and (not policy.roles or role in policy.roles)
        for policy in access.policies
        if any(grant.resource == "r" and policy.id in grant.policies for grant in access.grants)
    )
    assert (answer.ruling is G) is expected
    assert bool(answer.reason) is not expected
    assert decided(None, user, event, facts).ruling is G
    assert event == "push" or decided(access, user, event, facts, forks="never").ruling is R
    assert decided(access, user, event, facts.gone()).ruling in ((G, U) if expected else (R, U))


@pytest.mark.parametrize(
    ("url", "github", "file"),
    [
        ("https://raw.githubusercontent.com/o/r/main/a/b.json", GITHUB, TextFile("o/r", "main", "a/b.json")),
        ("https://raw.githubusercontent.com/o/r/refs/heads/dev/b.json", GITHUB, TextFile("o/r", "dev", "b.json")),
        ("https://github.com/o/r/raw/v1/b.json", GITHUB, TextFile("o/r", "v1", "b.json")),
        ("https://github.com/o/r/blob/main/b%20c.json", GITHUB, TextFile("o/r", "main", "b c.json")),
        ("https://git.example.org/o/r/raw/main/b.json", "https://git.example.org", TextFile("o/r", "main", "b.json")),
        ("https://git.example.org/o/r/raw/main/b.json", GITHUB, None),
        ("https://raw.githubusercontent.com/o/r/main/b.json", "https://git.example.org", None),
        ("http://raw.githubusercontent.com/o/r/main/b.json", GITHUB, None),
        ("https://raw.githubusercontent.com@evil.example/o/r/main/b.json", GITHUB, None),
        ("https://raw.githubusercontent.com/o/r/main", GITHUB, None),
        ("https://raw.githubusercontent.com/o/r/main/..%2f..%2fuser", GITHUB, None),
        ("https://raw.githubusercontent.com/o/r/main/../x", GITHUB, None),
        ("https://raw.githubusercontent.com/o%2Fx/r/main/x", GITHUB, None),
        ("https://169.254.169.254/o/r/raw/main/x", GITHUB, None),
        ("https://[", GITHUB, None),
        ("file:///etc/passwd", GITHUB, None),
        ("", GITHUB, None),
    ],
)  # fmt: skip
def test_lists_of_users_are_files_of_the_same_github(url: str, github: str, file: TextFile | None) -> None:
    assert source_of(url, github) == file


@given(st.text(max_size=200))
def test_no_url_and_no_list_breaks_the_reader(text: str) -> None:
    source_of(text)
    source_of(f"https://raw.githubusercontent.com/{text}")
    users = read_users(text)
    assert users is None or isinstance(users, frozenset)


def test_lists_of_users() -> None:
    entries = '[{"github": "Ada", "id": 1}, {"id": 2}, {"github": 7}, "Bert", null]'
    assert read_users(f'{{"users": {entries}}}') == frozenset({"ada", "bert"})
    assert read_users('["Ada"]') == frozenset({"ada"})
    for text in ("{}", "[[", "7", '{"users": 7}', "[" * 100_000, " " * (1 << 21)):
        assert read_users(text) is None
