"""All kinds of findings about these files. The manual's table (docs/how-to/configure-runners.md) has all of them."""

from __future__ import annotations

from gpuyard.model.finding import Rule, Severity

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES = {
    rule.id: rule
    for rule in (
        # Any file.
        Rule("not-yaml", E, "The file cannot be read: nothing in it counts."),
        Rule("wrong-form", E, "A value is not what can stand there: its entry does not count."),
        Rule("unknown-key", W, "A key means nothing here, and is ignored."),
        Rule("ignored-key", N, "A key of Cirun's that gpuyard has no use for."),
        Rule("too-many", E, "There are more entries than anybody needs: the rest does not count."),
        # Runners.
        Rule("runner", Severity.OK, "What jobs get, and by which labels."),
        Rule("no-runners", W, "The file has no runners."),
        Rule("key-missing", E, "An entry lacks what it needs, and does not count."),
        Rule("restriction-unknown", E, "An older key that keeps people out is not known here: nobody gets the runner."),
        Rule("name-repeated", W, "Two runners have one name: access rules and idle runners mean the first."),
        Rule("no-labels", E, "No job can ask for a runner without labels."),
        Rule("general-labels", W, "A runner has only labels that every runner has: no job gets it by them."),
        Rule("label-suffix", W, "A label has `--`: what follows is a job's own, and does not count here."),
        Rule("hosted-label", W, "A label is a name of GitHub's own runners, where jobs that ask for it alone run."),
        Rule("same-labels", N, "Two runners have the same labels: the second is tried where the first cannot be had."),
        Rule("other-cloud", N, "A runner of another cloud: gpuyard leaves it alone."),
        Rule("lists-differ", W, "Lists of alternatives differ in length: the last value of a shorter one stays."),
        Rule("gpu-ignored", N, "`gpu` is ignored: a flavor says which GPU it has, and drivers are in the image."),
        Rule("region-ignored", N, "A list of regions is ignored: a site is in one region."),
        Rule("extra-config-ignored", N, "`extra_config` is ignored: a server is as its flavor and the site say."),
        # Runners, compared with a site.
        Rule("flavor-unknown", E, "The site has no such flavor."),
        Rule("flavor-without-gpu", W, "A flavor has no GPU, and the site has no runners without one."),
        Rule("flavor-not-allowed", E, "The site does not give this flavor to jobs."),
        Rule("image-not-allowed", E, "The site does not start jobs with this image."),
        Rule("too-many-idle", W, "More idle runners than the site lets repositories have."),
        Rule("permission-missing", E, "The app lacks a permission without which jobs get no runners."),
        Rule("permission-useful", W, "The app lacks a permission, and something that the site wants is left out."),
        Rule("permission-unknown", N, "GitHub could not be asked what the app may do, or it is a token."),
        # Access.
        Rule("unknown-version", W, "The file is of a version that gpuyard does not know."),
        Rule("policy-repeated", E, "Two policies have one id: the first counts."),
        Rule("policy-for-nobody", W, "A policy has neither teams, users nor roles: it is for nobody."),
        Rule("policy-unknown", E, "A resource names a policy that is not there: it gives nobody anything."),
        Rule("policy-unused", N, "No resource names this policy."),
        Rule("resource-repeated", N, "A resource has two entries: the policies of both count."),
        Rule("resource-unknown", W, "No runner of `.cirun.global.yml` and no scale set has this name."),
        Rule("runner-unused", W, "Where there is an `.access.yml`, runners of a repository's own file are not used."),
        Rule("resource-missing", W, "No entry of `access_control` names this runner: nobody may use it."),
        Rule("role-unknown", N, "GitHub has no such role by itself; it may be one of the organisation's own."),
        Rule("users-not-on-github", W, "gpuyard reads lists of users from repositories of the same GitHub alone."),
    )
}  # fmt: skip
