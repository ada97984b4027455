"""Plans the steps that are missing to prepare a host, from its present state and the operator's wishes. Changes
nothing.

A plan depends on the host's present state alone, so it is empty when everything is as it shall be, has only the
difference when a GPU was added or taken out, and picks up where a crash left off. Files come first, then the commands
that make boot files of them, then the drivers that change while the machine runs.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from gpuyard.host.machine import Machine
from gpuyard.host.modules import ids_by_option, is_available, is_builtin, natives, softdeps
from gpuyard.host.preparation import bind
from gpuyard.host.preparation.binders import busy_display, console_on, other_binders
from gpuyard.host.preparation.choice import Choice, choose
from gpuyard.host.preparation.distribution import UPDATE_GRUB, UPDATE_INITRAMFS, Tool, has_grub_folder, initramfs_tool
from gpuyard.host.preparation.files import (
    DRACUT_FILE,
    GRUB_FILE,
    HOOK_FILE,
    MARK,
    MODPROBE_FILE,
    OPTIONS_FILE,
    OUR_FILES,
    SCRIPT_FILE,
    HostFile,
    dracut_file,
    grub_file,
    hook_file,
    list_file,
    modprobe_file,
    options_file,
    script_file,
    unit_files,
)
from gpuyard.host.preparation.journal import Journal
from gpuyard.host.preparation.kernel_options import KernelOptions, kernel_options
from gpuyard.host.preparation.passthrough import LIST_FILE, VFIO_DRIVER, Passthrough, is_vfio, read_list
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.tree import Tree
from gpuyard.model.pci import PciFunction
from gpuyard.model.plan import Plan, Step, StepVerb

if TYPE_CHECKING:
    from gpuyard.host.holders import DeviceHolder

IN_INITRAMFS = (LIST_FILE, SCRIPT_FILE, MODPROBE_FILE, OPTIONS_FILE, HOOK_FILE, DRACUT_FILE)

Held = Mapping[str, Sequence["DeviceHolder"]]


def plan_preparation(machine: Machine, wishes: Wishes, journal: Optional[Journal], held: Held) -> Plan:
    """`held`: address -> who has the device open."""
    choice, options = choose(machine, wishes), kernel_options(machine, wishes, journal)
    passthroughs = [Passthrough(f.address, f.ids, _vfio_driver(f)) for f in choice.functions]
    files = wanted_files(machine, wishes, choice.functions, passthroughs, options)
    changed = list(_file_steps(machine.tree, files))
    commands = [*_initramfs_steps(machine.tree, files, journal), *_boot_steps(machine, files, options, journal)]
    moves = list(_driver_steps(machine, passthroughs, journal)) if wishes.live and machine.inventory.iommu_on else []
    refusals = [
        *choice.refusals,
        *options.refusals,
        *_impossible(machine, choice),
        *_not_ours(machine.tree),
        *_taken_by_ids(machine, wishes, passthroughs, options),
        *in_use(moves, held),
        *_dangerous(machine, moves),
    ]
    reboot = _after_a_reboot(machine, options, passthroughs, moves)
    notes = [*machine.inventory.unreadable] if machine.inventory.functions else []
    notes += [*choice.notes, *options.notes, *_gone(machine), *other_binders(machine.tree, _addresses(machine))]
    notes += [f"the text console goes dark with {f.short_address}" for f in _darkened(machine, moves)]
    return Plan((*changed, *commands, *moves), tuple(refusals), tuple(notes), tuple(reboot))


def _vfio_driver(function: PciFunction) -> str:
    """The one that it has, if that is a variant for such devices."""
    return function.driver if function.driver and is_vfio(function.driver) else VFIO_DRIVER


def _gone(machine: Machine) -> Iterable[str]:
    present = {function.address for function in machine.inventory.functions}
    for entry in read_list(machine.tree):
        if entry.address not in present:
            yield f"{entry.address} [{entry.ids}] was given away and is not there any more: it leaves the list"


def _addresses(machine: Machine) -> List[str]:
    return [function.address for function in machine.members]


def _dangerous(machine: Machine, moves: Iterable[Step]) -> Iterable[str]:
    """Displays that the kernel itself holds: an unbind would never return, and the host not shut down."""
    reasons: Dict[str, List[str]] = {}
    for step in moves:
        for address in step.after if step.verb is StepVerb.BIND else ():
            reasons.setdefault(busy_display(machine.tree, machine.inventory.function(address)), []).append(address)
    for reason, addresses in reasons.items():
        if reason:
            yield f"{', '.join(addresses)}: {reason}: use --no-live and reboot"


def _darkened(machine: Machine, moves: Iterable[Step]) -> List[PciFunction]:
    moved = {address for step in moves if step.verb is StepVerb.BIND for address in step.after}
    return [f for f in machine.members if f.address in moved and console_on(machine.tree, f)]


def _after_a_reboot(
    machine: Machine, options: KernelOptions, passthroughs: Sequence[Passthrough], moves: Iterable[Step]
) -> Iterable[str]:
    """What the steps do not bring about at once."""
    running = machine.inventory.facts.command_line.split()
    yield from (f"kernel option {word}" for word in options.wanted if word not in running)
    yield from (f"no kernel option {word}" for word in options.unwanted if word in running)
    now = {address for step in moves for address in step.after}
    drivers = {function.address: function.driver for function in machine.inventory.functions}
    for function in passthroughs:
        if function.address not in now and drivers[function.address] != function.driver:
            yield f"{function.address} with {function.driver}"


def wanted_files(
    machine: Machine,
    wishes: Wishes,
    functions: Sequence[PciFunction],
    passthroughs: Sequence[Passthrough],
    options: KernelOptions,
) -> Tuple[HostFile, ...]:
    """All of our files as they shall be. One that is not in it must not be there."""
    files: List[HostFile] = []
    if passthroughs:
        others = {module: words for module, (_, words) in softdeps(machine.tree, but=OUR_FILES).items()}
        files += [list_file(passthroughs), script_file(), modprobe_file(natives(machine.tree, functions), others)]
        lines = _module_options(machine.tree, wishes)
        files += [*([options_file(lines)] if lines else []), *unit_files()]
        tool = initramfs_tool(machine.tree)
        if tool:
            files.append(hook_file() if tool == UPDATE_INITRAMFS else dracut_file())
    if (options.wanted or options.unwanted) and has_grub_folder(machine.tree):
        files.append(grub_file(options.wanted, options.unwanted))
    return tuple(files)


def _module_options(tree: Tree, wishes: Wishes) -> List[str]:
    lines = []
    if wishes.unsafe_interrupts and not is_builtin(tree, "vfio_iommu_type1"):
        lines.append("options vfio_iommu_type1 allow_unsafe_interrupts=1")
    if wishes.replace_legacy and ids_by_option(tree, "", but=OUR_FILES):
        lines += ["options vfio-pci ids=", "options pci-stub ids="]  # the last counts: no card is taken by its ids
    return lines


def _file_steps(tree: Tree, files: Sequence[HostFile]) -> Iterable[Step]:
    for file in files:
        now = tree.read(file.path)
        after = {"text": file.text, "mode": file.mode}
        if now is None:
            yield Step(StepVerb.CREATE, "file", f"/{file.path}", file.reason, {}, after)
        elif now != file.text.rstrip("\n"):
            yield Step(StepVerb.UPDATE, "file", f"/{file.path}", file.reason, {"text": f"{now}\n"}, after)
    desired_paths = {file.path for file in files}
    for path in OUR_FILES:
        now = tree.read(path)
        if path not in desired_paths and now is not None:
            yield Step(StepVerb.DELETE, "file", f"/{path}", "no longer needed", {"text": f"{now}\n"}, {})


def _initramfs_steps(tree: Tree, files: Sequence[HostFile], journal: Optional[Journal]) -> Iterable[Step]:
    """The initramfs has copies of our files, so it must be made again whenever one of them is another."""
    tool = initramfs_tool(tree)
    if tool:
        inputs = _digest(file for file in files if file.path in IN_INITRAMFS)
        yield from _run(tool, inputs, "the initramfs must know the functions before it loads a driver", journal)


def _boot_steps(
    machine: Machine, files: Sequence[HostFile], options: KernelOptions, journal: Optional[Journal]
) -> Iterable[Step]:
    reason = f"the next boot needs another command line: {' '.join(options.wanted) or 'nothing of gpuyard'}"
    reason += f" without {' '.join(options.unwanted)}" if options.unwanted else ""
    if has_grub_folder(machine.tree):
        yield from _run(
            UPDATE_GRUB, _digest(file for file in files if file.path == GRUB_FILE), reason, journal, options.wanted
        )
        return
    if options.tool:
        yield _run_step(options.tool, " ".join(options.wanted), reason, options.wanted)


def _run(
    tool: Tool, inputs: str, reason: str, journal: Optional[Journal], options: Sequence[str] = ()
) -> Iterable[Step]:
    """A run if the last good one was for something else. Never having run is as good as a run for nothing."""
    last = journal.runs.get(tool.name) if journal else None
    if inputs != (last.inputs if last else ""):
        yield _run_step(tool, inputs, reason, options)


def _run_step(tool: Tool, inputs: str, reason: str, options: Sequence[str] = ()) -> Step:
    after = {"command": tool.command, "inputs": inputs, "outputs": tool.outputs, "inverse": tool.inverse}
    after.update({"options": tuple(options)} if options else {})
    return Step(StepVerb.RUN, "command", tool.name, reason, {}, after)


def _digest(files: Iterable[HostFile]) -> str:
    """Of paths and texts; empty for no files."""
    text = "".join(f"{file.path}\0{file.text}\0" for file in files)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _driver_steps(machine: Machine, passthroughs: Sequence[Passthrough], journal: Optional[Journal]) -> Iterable[Step]:
    """One step a group: its functions change together, or it is "not viable"."""
    target = {function.address: function.driver for function in passthroughs}
    for number, members in machine.inventory.groups().items():
        moved = [f for f in members if f.address in target and f.driver != target[f.address]]
        if moved:
            before: Dict[str, Optional[str]] = {f.address: f.driver for f in moved}
            after = {f.address: target[f.address] for f in moved}
            yield Step(StepVerb.BIND, "group", str(number), "a VM can have the group", before, after)
        others = [f for f in members if f.address not in target]
        back = {f.address: f.driver for f in others if can_go_back(machine.tree, f, journal)}
        if back:
            yield release_step(number, back, journal, "the host keeps it")


def can_go_back(tree: Tree, function: PciFunction, journal: Optional[Journal]) -> bool:
    """Whether gpuyard changed the driver of a function, and it has not got its own back yet."""
    before = journal.functions.get(function.address) if journal else None
    if before is None or before.ids != function.ids:
        return False
    now = bind.before(tree, function.address, function.ids, None)
    ours = now.driver in (None, before.driver) or is_vfio(
        now.driver
    )  # or else somebody has given it to something since
    return ours and (now.driver, now.override) != (before.driver, before.override)


def release_step(
    group: Optional[int], now: Mapping[str, Optional[str]], journal: Optional[Journal], reason: str
) -> Step:
    """Back to the drivers of before."""
    assert journal is not None
    after = {address: journal.functions[address].driver for address in now}
    return Step(StepVerb.RELEASE, "group", "none" if group is None else str(group), reason, now, after)


def in_use(steps: Iterable[Step], held: Held) -> Iterable[str]:
    """Why drivers cannot change now: somebody has a device open, and taking it away would hang or hurt.

    Each holder once, with all that it holds.
    """
    addresses_by_holder: Dict[str, Dict[str, None]] = {}
    for step in steps:
        for address in step.before:
            for holder in held.get(address, ()):
                who = f"a VM ({holder}): wait for its end" if holder.is_vm else f"{holder}: end it"
                addresses_by_holder.setdefault(who, {})[address] = None
    for who, addresses in addresses_by_holder.items():
        are = "is" if len(addresses) == 1 else "are"
        yield f"{', '.join(addresses)} {are} in use by {who}, or use --no-live and reboot"


def _impossible(machine: Machine, choice: Choice) -> Iterable[str]:
    if choice.functions and is_available(machine.tree, "vfio_pci") is False:
        yield "the kernel has no vfio-pci: install the kernel package with all modules"
    if choice.functions and machine.firmware_first:
        yield f"the IOMMU is off, and that comes first: {machine.firmware_first}; then plan again"
    if not machine.inventory.functions:
        yield from machine.inventory.unreadable


def _not_ours(tree: Tree) -> Iterable[str]:
    for path in OUR_FILES:
        text = tree.read(path)
        if text is not None and MARK not in text[:200]:
            yield f"/{path} is there and gpuyard did not write it: move it away"


def _taken_by_ids(
    machine: Machine, wishes: Wishes, passthroughs: Sequence[Passthrough], options: KernelOptions
) -> Iterable[str]:
    """``ids=`` that would take a card which the host shall keep, and that this plan does not take out."""
    given, running = {function.address for function in passthroughs}, machine.inventory.facts.command_line.split()
    for ids, where in ids_by_option(machine.tree, " ".join(running)).items():
        host_gpus = [gpu.short_address for gpu in machine.inventory.gpus if gpu.ids == ids and gpu.address not in given]
        words = [word for word in running if ".ids=" in word and ids in word.lower()]
        in_file = where.startswith("/")
        if not host_gpus or (wishes.replace_legacy and (in_file or all(word in options.unwanted for word in words))):
            continue
        reason = f"ids={ids} in {where} takes {', '.join(host_gpus)} too, which the host keeps"
        if in_file or all(word in options.foreign for word in words):
            yield f"{reason}: take it out, or let --replace-legacy leave it out"
        else:
            yield f"{reason}: it is in no boot configuration that gpuyard knows, so take it out by hand and reboot"
