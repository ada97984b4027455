"""Writes the user data (cloud-init) of a runner's server. Pure.

Every job can read it, from the metadata service and from the config drive, for as long as the server is there. So there
is one secret in it, the just-in-time configuration, which is good for one registration and one job and is worth nothing
to anybody who has it afterwards.
"""

from __future__ import annotations

import base64
import re

from gpuyard.guest.cloud_config import FOLDER, GPU_CHECK, MOST_BYTES, cloud_config, guest_file, script
from gpuyard.model.errors import BlockedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
CONFIGURATION = re.compile(r"[A-Za-z0-9+/_=-]{1,40000}", re.ASCII)

SECRET = "/run/gpuyard/jitconfig"  # noqa: S105 - a path
"""Path in the server of the configuration, until the runner has it. In memory, and root's."""
RULES = f"{FOLDER}/job-rules.json"
AGAIN = f"! cmp -s {FOLDER}/started /var/lib/cloud/data/instance-id || sh {FOLDER}/runner again"
"""Command at every boot that finds out whether this very server has been on before. An image may have been made from
another one."""
UNITS = "/run/systemd/system"
"""Folder in the server for units that a second boot shall not find."""


class UserDataError(BlockedError):
    """A name, configuration or size that no server can be given as user data."""


def user_data(name: str, encoded_jit_config: str, gpus: int, rules: str, check_seconds: int = 60) -> str:
    """Return the text for one runner: check `gpus` GPUs, if it has any, run one job, switch off. console.py reads what
    comes to the console on the way.

    `name` is the runner's, `encoded_jit_config` as GitHub has answered it, `rules` what its job is checked against
    (`guest_rules`). The check of the GPUs may take `check_seconds`. Raises UserDataError for what cannot be a name or a
    configuration, or is too large for Nova.
    """
    if not NAME.fullmatch(name):
        raise UserDataError(f"{name[:80]!r} is no name for a runner: letters, digits, '.', '_' and '-', 64 at most")
    if not CONFIGURATION.fullmatch(encoded_jit_config):
        raise UserDataError(f"the configuration of runner {name} is not base64 of 40,000 characters at most")
    settings = f"NAME={name}\nGPUS={gpus:d}\nCHECK_SECONDS={check_seconds:d}\n"
    document = {
        "bootcmd": [["sh", "-c", AGAIN]],
        "write_files": [
            guest_file(f"{FOLDER}/settings", settings),
            guest_file(f"{FOLDER}/runner", _script("runner.sh")),
            guest_file(f"{FOLDER}/gpu-check", script("gpuyard.guest", GPU_CHECK)),
            guest_file(f"{FOLDER}/job-started.sh", _script("job-started.sh"), "0755"),
            guest_file(f"{FOLDER}/job_rules.py", _script("job_rules.py")),
            guest_file(RULES, rules),
            guest_file(f"{UNITS}/gpuyard.slice", _script("gpuyard.slice")),
            guest_file(f"{UNITS}/gpuyard-runner.service", _script("gpuyard-runner.service")),
            guest_file(SECRET, encoded_jit_config, "0600"),
        ],
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "start", "--no-block", "gpuyard-runner.service"]],
    }
    text = cloud_config(document)
    if len(base64.b64encode(text.encode())) > MOST_BYTES:
        raise UserDataError(f"the user data of runner {name} is larger than Nova takes ({MOST_BYTES} bytes in base64)")
    return text


def _script(name: str) -> str:
    return script("gpuyard.runners", f"guest/{name}")
