"""Plans to restore a host as it was before gpuyard's first change. Changes nothing.

A file that gpuyard wrote goes, or gets its old content back. A command's output (the initramfs, GRUB's menu) gets its
old bytes back while it still is what our run left; where a kernel came or went since, it is made anew instead.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from gpuyard.host.modules import canonical
from gpuyard.host.preparation.apply import matching
from gpuyard.host.preparation.journal import Journal, Run, copy_of
from gpuyard.host.preparation.plan import Held, can_go_back, in_use, release_step
from gpuyard.host.tree import Tree
from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan, Step, StepVerb

REASON = "as it was before gpuyard"


def plan_undo(
    tree: Tree,
    inventory: Inventory,
    journal: Optional[Journal],
    digests: Mapping[str, str],
    held: Held,
    live: bool = True,
) -> Plan:
    """`digests`: path -> SHA-256 of the files that our commands made, and of the copies. `held` as for a preparation.

    Without `live` drivers change at the next boot only.
    """
    if journal is None:
        return Plan()
    # The last first: what others depend on, such as the list, goes after them.
    files = [
        Step(StepVerb.DELETE, "file", f"/{path}", REASON, {"text": f"{tree.read(path)}\n"})
        for path in reversed(journal.files)
        if tree.read(path) is not None
    ]
    notes: List[str] = []
    commands = [step for name, run in journal.runs.items() for step in _outputs(tree, name, run, digests, notes)]
    drivers = list(_drivers(tree, inventory, journal, notes))
    running = inventory.facts.command_line.split()
    reboot = [f"no kernel option {word}" for word in journal.options if word in running]
    if not live:
        reboot += [f"{address} with its own driver" for step in drivers for address in step.after]
        return Plan((*files, *commands), (), tuple(notes), tuple(reboot))
    modules = _modules(tree, inventory, journal, drivers)
    refusals = tuple(in_use(drivers, held))
    return Plan((*files, *commands, *drivers, *modules), refusals, tuple(notes), tuple(reboot))


def _outputs(tree: Tree, name: str, run: Run, digests: Mapping[str, str], notes: List[str]) -> Iterable[Step]:
    """Old bytes for what only our runs have changed; a new run where that is not certain."""
    now = {path: digests.get(path, "") for path in matching(tree, run.patterns)}
    if now and now == dict(run.originals):
        return
    ours: Dict[str, Tuple[Optional[str], Optional[str]]] = {
        path: (digest, run.outputs.get(path)) for path, digest in run.originals.items()
    }
    copies = all(digests.get(copy_of(path)) == digest for path, digest in run.originals.items())
    # Such as /etc/kernel/cmdline, which grubby makes where it is missing.
    made = {path for path in now.keys() - run.originals.keys() if now[path] == run.outputs.get(path)}
    ours.update({path: (None, run.outputs[path]) for path in made})
    same_files = bool(now) and now.keys() - made == run.originals.keys()
    if same_files and copies and not run.stale and all(digest in ours[path] for path, digest in now.items()):
        for path, digest in now.items():
            if path in made:
                yield Step(StepVerb.DELETE, "file", f"/{path}", REASON, {"digest": digest})
            elif digest != run.originals[path]:
                yield Step(StepVerb.RESTORE, "file", f"/{path}", REASON, {"digest": digest})
        return
    notes.append(
        f"{name}: not certain that only gpuyard has changed it, so it is made anew, not byte for byte as before"
    )
    yield Step(
        StepVerb.RUN, "command", name, REASON, {}, {"command": run.inverse, "inputs": "", "outputs": run.patterns}
    )


def _drivers(tree: Tree, inventory: Inventory, journal: Journal, notes: List[str]) -> Iterable[Step]:
    functions = {function.address: function for function in inventory.functions}
    for address, before in journal.functions.items():
        if address not in functions or functions[address].ids != before.ids:
            notes.append(f"{address}: the card of then is gone, so it has no driver to get back")
    moved = [function for function in inventory.functions if can_go_back(tree, function, journal)]
    for group in sorted({-1 if function.iommu_group is None else function.iommu_group for function in moved}):
        now = {f.address: f.driver for f in moved if f.iommu_group == (None if group < 0 else group)}
        yield release_step(None if group < 0 else group, now, journal, REASON)


def _modules(tree: Tree, inventory: Inventory, journal: Journal, drivers: Sequence[Step]) -> Iterable[Step]:
    """Modules that nobody had loaded, unless a function that is not ours uses one by now."""
    back = {address for step in drivers for address in step.after}
    for module in journal.modules:
        users = [f for f in inventory.functions if canonical(f.driver or "") == module and f.address not in back]
        if tree.names(f"sys/module/{module}") and not users:
            yield Step(StepVerb.DELETE, "module", module, "was not loaded before gpuyard")
