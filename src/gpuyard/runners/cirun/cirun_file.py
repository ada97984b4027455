"""Reads `.cirun.yml` and `.cirun.global.yml`, which have the same form. Never raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from gpuyard.runners.cirun.labels import GENERAL, HOSTED, bare
from gpuyard.runners.cirun.reading import MOST_TEXT, Reading, shown
from gpuyard.runners.cirun.records import OPENSTACK, CirunFile, CirunRunner, IdleByUse, IdleTime, Way
from gpuyard.site.booking_rules import known_zone
from gpuyard.site.document import Path
from gpuyard.site.runner_rules import hours_of, weekdays_of

MOST_RUNNERS = 200
MOST_LABELS = 100
MOST_WAYS = 20
MOST_IDLE = 1000
MOST_MINUTES = 7 * 24 * 60
KEYS = (
    "name", "cloud", "instance_type", "machine_image", "region", "labels", "preemptible", "gpu", "idle", "extra_config",
)  # fmt: skip
OLDER = ("workflow", "count", "setup_info")
"""Keys that Cirun reads or once read, and gpuyard has no use for."""
RESTRICTIONS = ("run_only_when_triggered_by", "run_only_when_trigger_by")
"""Keys of older files that keep people out. Ignored, they would let them in."""
CLOUDS = ("aws", "azure", "digitalocean", "do", "gcp", "on_prem", "oracle", "vastai", OPENSTACK)
USUAL = {"day": "mon-sun", "time": "0-24", "timezone": "UTC"}
T = TypeVar("T")


def read_cirun(text: str, file: str = ".cirun.yml") -> CirunFile:
    """Parse a `.cirun.yml` or `.cirun.global.yml`. `file` is its name in findings."""
    reading = Reading(file)
    if not reading.open(text):
        return CirunFile((), False, tuple(reading.findings))
    if reading.document.value is None:
        reading.say("no-runners", (), "the file is empty", "start with 'runners:'")
        return CirunFile((), True, tuple(reading.findings))
    if (top := reading.top) is None:
        return CirunFile((), False, tuple(reading.findings))
    reading.unknown(top, ("runners", *RESTRICTIONS), (), OLDER)
    if _restricted(reading, (), top):
        return CirunFile((), False, tuple(reading.findings))
    if not top.get("runners"):
        reading.say("no-runners", ("runners",), "'runners' is missing or empty", "add an entry for each runner")
    runners = [
        runner
        for path, entry in reading.entries(top, "runners", MOST_RUNNERS)
        if (runner := _runner(reading, path, entry)) is not None
    ]
    _compare(reading, runners)
    readable = isinstance(top.get("runners"), list) or not top.get("runners")
    return CirunFile(tuple(runners), readable, tuple(reading.findings))


def _runner(reading: Reading, path: Path, entry: Mapping[str, Any]) -> CirunRunner | None:
    """None for an entry without a name that could be spoken of."""
    cloud = entry.get("cloud")
    name = entry.get("name")
    if isinstance(cloud, str) and cloud.strip().lower() != OPENSTACK:
        return _foreign(reading, path, entry, cloud.strip().lower())
    missing = [key for key in ("name", "cloud", "instance_type", "machine_image") if entry.get(key) in (None, "", [])]
    for key in missing:
        what = f"runner {shown(name)}" if name else "a runner"
        remedy = "write 'cloud: openstack' if gpuyard shall make it" if key == "cloud" else f"add '{key}: ...'"
        reading.say("key-missing", path, f"{what} has no {key!r}, and does not count", remedy)
    reading.unknown(entry, (*KEYS, *RESTRICTIONS), path, OLDER)
    labels = _labels(reading, path, entry)
    ways = _ways(reading, path, entry)
    idle = _idle(reading, path, entry["idle"]) if entry.get("idle") is not None else ()
    _ignored(reading, path, entry)
    valid_name = reading.text((*path, "name"), name) if name is not None else None
    cloud_known = "cloud" in missing or reading.text((*path, "cloud"), cloud) is not None
    if valid_name is None:
        return None
    whole = not missing and cloud_known and not _restricted(reading, path, entry)
    return CirunRunner(
        valid_name,
        OPENSTACK,
        tuple(labels),
        tuple(ways) if whole else (),
        idle,
        reading.file,
        reading.document.line(path),
    )


def _restricted(reading: Reading, path: Path, entry: Mapping[str, Any]) -> bool:
    for key in (restrictions := [key for key in RESTRICTIONS if key in entry]):
        reason = f"{key!r} keeps people out in a way that gpuyard does not know: what it is for does not count"
        reading.say("restriction-unknown", (*path, key), reason, "write a policy in .access.yml instead")
    return bool(restrictions)


def _foreign(reading: Reading, path: Path, entry: Mapping[str, Any], cloud: str) -> CirunRunner | None:
    """A runner of another cloud. What it may have is not ours to say."""
    name, labels = entry.get("name"), entry.get("labels")
    spoken = name if isinstance(name, str) and name.strip() else "without a name"
    reason = f"runner {spoken[:100]!r} is for the cloud {cloud[:40]!r}: gpuyard leaves it alone"
    remedy = "" if cloud in CLOUDS else "write 'cloud: openstack' if gpuyard shall make it"
    reading.say("other-cloud", path, reason, remedy)
    texts = [label for label in labels if isinstance(label, str)][:MOST_LABELS] if isinstance(labels, list) else []
    return CirunRunner(spoken[:300], cloud[:40], tuple(texts), (), (), reading.file, reading.document.line(path))


def _labels(reading: Reading, path: Path, entry: Mapping[str, Any]) -> list[str]:
    labels = reading.texts(entry, "labels", path, MOST_LABELS)
    place = (*path, "labels")
    if not labels:
        remedy = "add 'labels:' with what 'runs-on' of your workflow says, as in 'cirun-gpu'"
        reading.say(
            "no-labels", place if "labels" in entry else path, "no job can ask for it: it has no labels", remedy
        )
        return labels
    if not {bare(label) for label in labels} - GENERAL:
        remedy = "add a label of its own, as in 'cirun-gpu'"
        reading.say("general-labels", place, f"it has only {', '.join(labels)}: no job gets it by these alone", remedy)
    for index, label in enumerate(labels):
        if "--" in label:
            reason = f"of the label {label!r} only {bare(label)!r} counts: what follows '--' is a job's own"
            reading.say("label-suffix", (*place, index), reason, f"write {bare(label)!r}")
        elif bare(label).startswith(HOSTED):
            reason = f"GitHub's own runners have names like {label!r}: jobs that ask for such a label alone run there"
            reading.say("hosted-label", (*place, index), reason, "take a label of your own, as in 'cirun-gpu'")
    return labels


def _ways(reading: Reading, path: Path, entry: Mapping[str, Any]) -> list[Way]:
    """The alternatives in order: the i-th entries of all lists belong together. Empty when one cannot be read."""
    flavors = reading.texts(entry, "instance_type", path, MOST_WAYS)
    images = reading.texts(entry, "machine_image", path, MOST_WAYS)
    preemptible = _truths(reading, path, entry.get("preemptible"))
    regions = entry.get("region")
    sizes = {
        key: len(value)
        for key in ("instance_type", "machine_image", "region", "preemptible")
        if isinstance(value := entry.get(key), list) and len(value) > 1
    }
    if len({*sizes.values()}) > 1:
        counts = ", ".join(f"{size} of {key!r}" for key, size in sizes.items())
        reason = f"{counts}: where a list has no more, its last value stays"
        reading.say("lists-differ", path, reason, "write lists of the same length, or one value for all")
    if isinstance(regions, list) and len({str(region) for region in regions}) > 1:
        reading.say("region-ignored", (*path, "region"), "gpuyard's site is in one region: the list is ignored")
    lengths = [
        len(value) if isinstance(value := entry.get(key), list) else 1 for key in ("instance_type", "machine_image")
    ]
    if (
        not flavors
        or not images
        or preemptible is None
        or [len(flavors), len(images)] != [min(n, MOST_WAYS) for n in lengths]
    ):
        return []  # which was to go with which is not to be guessed
    length = max(len(flavors), len(images), len(preemptible))
    ways = [Way(_at(flavors, i), _at(images, i), _at(preemptible, i)) for i in range(length)]
    return list(dict.fromkeys(ways))


def _at(values: Sequence[T], index: int) -> T:
    return values[min(index, len(values) - 1)]


def _truths(reading: Reading, path: Path, value: object) -> list[bool] | None:
    """None when one of them is neither."""
    if value is None:
        return [False]
    place = (*path, "preemptible")
    if not isinstance(value, list):
        single = reading.truth(place, value)
        return None if single is None else [single]
    read = [reading.truth((*place, index), item) for index, item in enumerate(value[:MOST_WAYS])]
    return None if None in read else [bool(flag) for flag in read] or [False]


def _ignored(reading: Reading, path: Path, entry: Mapping[str, Any]) -> None:
    if entry.get("gpu") is not None:
        remedy = "take it out; choose a flavor with the GPU, and an image with its driver"
        reading.say("gpu-ignored", (*path, "gpu"), f"'gpu: {shown(entry['gpu'])}' is ignored", remedy)
    extra = entry.get("extra_config")
    if extra is not None:
        keys = ", ".join(str(key)[:40] for key in list(extra)[:10]) if isinstance(extra, dict) else shown(extra)
        reading.say("extra-config-ignored", (*path, "extra_config"), f"'extra_config' is ignored: {keys}")


def _idle(reading: Reading, path: Path, value: object) -> tuple[IdleTime, ...] | IdleByUse:
    place = (*path, "idle")
    idle = reading.mapping(place, value, "'idle'")
    if idle is None:
        return ()
    reading.unknown(idle, ("schedule", "usage_based", "replicas"), place)
    ways = [key for key in ("schedule", "usage_based", "replicas") if idle.get(key) is not None]
    if len(ways) != 1:
        reason = f"'idle' has {' and '.join(map(repr, ways)) or 'nothing'}; none of it counts"
        remedy = "keep one of 'schedule', 'usage_based' and 'replicas'; make a second runner for another"
        reading.say("wrong-form", place, reason, remedy)
        return ()
    if ways == ["replicas"]:
        count = reading.number(idle, "replicas", place, 0, MOST_IDLE)
        return () if not count else (IdleTime(count),)
    if ways == ["usage_based"]:
        return _by_use(reading, (*place, "usage_based"), idle["usage_based"])
    times = (
        _time(reading, entry_path, entry) for entry_path, entry in reading.entries(idle, "schedule", MOST_WAYS, place)
    )
    return tuple(time for time in times if time is not None)


def _by_use(reading: Reading, path: Path, value: object) -> tuple[()] | IdleByUse:
    entry = reading.mapping(path, value, "'usage_based'")
    if entry is None:
        return ()
    reading.unknown(entry, ("trigger", "replicas", "duration"), path)
    trigger = entry.get("trigger", "runner_allocated")
    if trigger != "runner_allocated":
        reason = f"'trigger' is {shown(trigger)}; there is only runner_allocated"
        reading.say("wrong-form", (*path, "trigger"), reason, "write 'trigger: runner_allocated'")
        return ()
    count = reading.number(entry, "replicas", path, 1, MOST_IDLE)
    minutes = reading.number(entry, "duration", path, 1, MOST_MINUTES)
    return IdleByUse(count, timedelta(minutes=minutes)) if count and minutes else ()


def _time(reading: Reading, path: Path, entry: Mapping[str, Any]) -> IdleTime | None:
    reading.unknown(entry, ("day", "time", "timezone", "replicas"), path)
    count = reading.number(entry, "replicas", path, 0, MOST_IDLE)
    days, hours, zone = (str(entry.get(key, usual)).strip() for key, usual in USUAL.items())
    read: list[Any] = []
    for key, parse, value in (
        ("day", weekdays_of, days.lower()),
        ("time", hours_of, hours),
        ("timezone", known_zone, zone),
    ):
        try:
            read.append(parse(value))
        except ValueError as error:
            reading.say("wrong-form", (*path, key), f"{key!r}: {error}"[:MOST_TEXT])
    if count is None or len(read) < len(USUAL):
        return None
    weekdays, (start, end), zone = read
    return IdleTime(count, weekdays, start, end, zone)


def _compare(reading: Reading, runners: Sequence[CirunRunner]) -> None:
    """Names and labels that come twice."""
    names: dict[str, CirunRunner] = {}
    labels: dict[frozenset[str], CirunRunner] = {}
    for runner in runners:
        if (first := names.setdefault(runner.name, runner)) is not runner:
            reason = (
                f"a runner {runner.name!r} is also in line {first.line}: access rules and idle runners mean that one"
            )
            reading.say_at(runner.line, "name-repeated", reason, "give it a name of its own")
        key = frozenset(bare(label) for label in runner.labels)
        if runner.ours and key and (earlier := labels.setdefault(key, runner)) is not runner:
            reason = f"it has the labels of runner {earlier.name!r} in line {earlier.line}, and is tried after that one"
            reading.say_at(runner.line, "same-labels", reason)
