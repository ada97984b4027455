"""Plans the way back: the host as it was before gpuyard's first change. Changes nothing.

A file that gpuyard wrote goes, or gets its old content back. What a command made (the initramfs, GRUB's menu) gets its
old bytes back while it still is what our run left; where a kernel came or went since, it is made anew instead.
"""

from __future__ import annotations

from typing import Iterable, List, Mapping, Optional, Sequence

from gpuyard.host.apply import matching
from gpuyard.host.journal import Journal, Run
from gpuyard.host.modules import canonical
from gpuyard.host.prepare import Held, can_go_back, in_use, release_step
from gpuyard.host.tree import Tree
from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan, Step, Verb

REASON = "as it was before gpuyard"


def plan_undo(
    tree: Tree, inventory: Inventory, journal: Optional[Journal], digests: Mapping[str, str], held: Held
) -> Plan:
    """`digests`: path -> SHA-256 of what is in the files that our commands made. `held` as for a preparation."""
    if journal is None:
        return Plan()
    files = [step for path, was_there in journal.files.items() for step in _file(tree, path, was_there)]
    notes: List[str] = []
    commands = [step for name, run in journal.runs.items() for step in _outputs(tree, name, run, digests, notes)]
    drivers = list(_drivers(tree, inventory, journal, notes))
    modules = _modules(tree, inventory, journal, drivers)
    return Plan((*files, *commands, *drivers, *modules), tuple(in_use(drivers, held)), tuple(notes))


def _file(tree: Tree, path: str, was_there: bool) -> Iterable[Step]:
    now = tree.read(path)
    before = {} if now is None else {"text": f"{now}\n"}
    if was_there:
        yield Step(Verb.RESTORE, "file", f"/{path}", REASON, before)
    elif now is not None:
        yield Step(Verb.DELETE, "file", f"/{path}", REASON, before)


def _outputs(tree: Tree, name: str, run: Run, digests: Mapping[str, str], notes: List[str]) -> Iterable[Step]:
    """Old bytes for what only our runs have changed; a new run where somebody else has changed or added something."""
    now = {path: digests.get(path, "") for path in matching(tree, run.patterns)}
    if now == dict(run.originals):
        return
    ours = all(
        digest in (run.originals[path], run.outputs.get(path, digest))
        for path, digest in now.items()
        if path in run.originals
    )
    if ours and now.keys() == run.originals.keys():
        for path, digest in now.items():
            if digest != run.originals[path]:
                yield Step(Verb.RESTORE, "file", f"/{path}", REASON, {"digest": digest})
        return
    notes.append(f"{name}: changed by something else since, so it is made anew and not byte for byte what it was")
    yield Step(Verb.RUN, "command", name, REASON, {}, {"command": run.inverse, "inputs": "", "outputs": run.patterns})


def _drivers(tree: Tree, inventory: Inventory, journal: Journal, notes: List[str]) -> Iterable[Step]:
    there = {function.address: function for function in inventory.functions}
    for address, before in journal.functions.items():
        if address not in there or there[address].ids != before.ids:
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
            yield Step(Verb.DELETE, "module", module, "was not loaded before gpuyard")
