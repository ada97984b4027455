"""Stand-in for the guest of a runner's server: plays what the server does from its user data and nothing else.

It boots, checks its GPU, connects, does one job, writes to its console what ``runners/guest/runner.sh`` writes there,
and switches itself off. ``step`` moves it on and never waits, so that one thread plays many, on a real clock or a
simulated one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gpuyard.guest.cloud_config import FOLDER
from gpuyard.runners.console import LOG_LINE, PREFIX
from gpuyard.runners.guest.job_rules import refusal
from gpuyard.runners.user_data import RULES, SECRET
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.runner_standin import read_config
from gpuyard_lab.github.standin import StandIn
from gpuyard_lab.github.wire import ForgeRequest

Answer = tuple[int, dict[str, Any]]
Ask = Callable[[str, str, str, dict[str, Any] | None], Answer]
"""Method, URL, token and body of a request -> status and JSON of its answer; status 0 when nobody answered."""
BOOT = timedelta(seconds=2)
CHECK = timedelta(seconds=1)
RENEW = timedelta(seconds=60)
HOSTILE = (
    "\x1b[2J\x1b[1;1Hall is well",
    f"{PREFIX}gpu failed every GPU of this cloud is broken",
    f"{PREFIX}job finished Succeeded",
    f"{PREFIX}failed <script>alert(1)</script>",
    f"{PREFIX}log begins",
    f"{LOG_LINE}\x00\x07\x9b31m" + "A" * 5000,
    "B" * 200_000,
)
"""Lines that a job may write to the console of its server, being root there."""


class UserDataUnreadError(ValueError):
    """User data that is not a runner's."""


@dataclass(frozen=True)
class GuestOrders:
    """The settings that a guest finds in its user data."""

    name: str
    gpus: int
    url: str
    token: str = field(repr=False)
    rules: Mapping[str, Any] = field(default_factory=dict)
    """The rules that its job is checked against before the first step."""


def orders(user_data: str) -> GuestOrders:
    """Read the settings as cloud-init and the scripts do. Raises UserDataUnreadError for user data that is not a
    runner's."""
    if not user_data.startswith("#cloud-config\n"):
        raise UserDataUnreadError("no cloud-config")
    try:
        document = YAML(typ="safe", pure=True).load(user_data)
        files = {entry["path"]: content_of(entry) for entry in document["write_files"]}
        settings = dict(line.split("=", 1) for line in files[f"{FOLDER}/settings"].splitlines())
        url, _, token = read_config(files[SECRET])
        return GuestOrders(settings["NAME"], int(settings["GPUS"]), url, token, json.loads(files[RULES]))
    except (YAMLError, KeyError, TypeError, ValueError) as error:
        raise UserDataUnreadError(f"not a runner's: {type(error).__name__}") from None


def content_of(entry: dict[str, str]) -> str:
    """Return the content of an entry of ``write_files``."""
    if entry.get("encoding") in ("b64", "base64"):
        return base64.b64decode(entry["content"]).decode()
    return entry["content"]


def refused(rules: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return why the hook before the first step does not let a job run; empty when it does. `job` as the stand-in gives
    it."""
    return refusal(rules, job["repository"], job["runId"], job["event"])


def in_process(standin: StandIn) -> Ask:
    """Return an Ask for guests beside the stand-in, in one process and on its clock."""

    def ask(method: str, url: str, token: str, body: dict[str, Any] | None = None) -> Answer:
        target = url.removeprefix(standin.forge.runner_url)
        data = b"" if body is None else json.dumps(body).encode()
        answer = standin.handle(ForgeRequest.of(method, target, {"authorization": f"Bearer {token}"}, data))
        if answer.cut or answer.status >= 500:
            return 0, {}
        return answer.status, answer.body if isinstance(answer.body, dict) else {}

    return ask


class GuestState(Enum):
    BOOTING = auto()
    CHECKING = auto()
    CONNECTING = auto()
    LISTENING = auto()
    STARTING = auto()
    """It has been given a job, and has not been heard yet to say that it runs it."""
    WORKING = auto()
    FINISHING = auto()
    OFF = auto()
    SILENT = auto()
    """It runs, and does nothing."""


class Guest:
    """The guest of one server. Its output goes to ``write``, as text for the end of its console."""

    def __init__(
        self,
        user_data: str,
        now: datetime,
        ask: Ask,
        write: Callable[[str], None],
        faults: Faults | None = None,
        boot: timedelta = BOOT,
        check: timedelta = CHECK,
    ) -> None:
        """Raises UserDataUnreadError when the server is not a runner's."""
        self.orders = orders(user_data)
        self.faults = faults or Faults()
        self.state = GuestState.BOOTING
        self._ask, self._write, self._check = ask, write, check
        self._until = now + boot
        self._session = ""
        self._job: dict[str, Any] = {}
        self._renewed = now
        self._result = "Succeeded"
        self._said: list[str] = []
        self._log: list[str] = []
        if self._strikes("guest_silent", now):
            self.state = GuestState.SILENT

    @property
    def off(self) -> bool:
        return self.state is GuestState.OFF

    def step(self, now: datetime) -> None:
        """Do what is due; at most one request."""
        match self.state:
            case GuestState.BOOTING if now >= self._until:
                self._write("[    0.000000] Linux version 6.1.0-gpuyard (stand-in)\n")
                self._write("cloud-init[412]: Cloud-init v. 22.4.2 running 'modules:final'\n")
                self.state, self._until = GuestState.CHECKING, now + self._check
            case GuestState.CHECKING if now >= self._until:
                self._check_gpu(now)
            case GuestState.CONNECTING:
                self._connect()
            case GuestState.LISTENING:
                self._listen(now)
            case GuestState.STARTING:
                self._start(now)
            case GuestState.WORKING:
                self._work(now)
            case GuestState.FINISHING:
                self._finish()

    def _strikes(self, fault: str, now: datetime) -> bool:
        return self.faults.strikes(fault, f"guest {self.orders.name}", now)

    def _check_gpu(self, now: datetime) -> None:
        gpu_count = self.orders.gpus
        if self._strikes("guest_bad_gpu", now):
            self._say("gpu failed 00000000:05:00.0 has 3 uncorrected ECC errors")
            self._switch_off()
            return
        self._say("gpu ok " + "; ".join(f"stand-in at 00000000:{5 + number:02x}:00.0" for number in range(gpu_count)))
        self.state = GuestState.CONNECTING

    def _connect(self) -> None:
        status, answer = self._ask("POST", f"{self.orders.url}/sessions", self.orders.token, {})
        if status == 201:
            self._session = answer["session"]
            self._runner("√ Connected to GitHub")
            self._runner("Listening for Jobs")
            self._say("online")
            self.state = GuestState.LISTENING
        elif status:
            self._give_up(answer)

    def _listen(self, now: datetime) -> None:
        status, answer = self._ask("GET", f"{self.orders.url}/message?wait=0", self._session, None)
        if status == 200:
            self._job = answer
            self.state = GuestState.STARTING
        elif status == 401:
            self._give_up(answer)

    def _start(self, now: datetime) -> None:
        status, _ = self._ask("POST", self._job_url("start"), self._session, {})
        if status == 204:
            self._runner(f"Running job: {self._job['jobDisplayName']}")
            self._say(f"job started {self._job['jobDisplayName']}")
            self.state, self._renewed = GuestState.WORKING, now
            self._until = now + timedelta(seconds=float(self._job["seconds"]))
            self._result = {"success": "Succeeded"}.get(self._job["result"], "Failed")
            if refused(self.orders.rules, self._job):  # the hook ends the process that runs the steps
                self._result, self.state = "Failed", GuestState.FINISHING
                return
            if self._strikes("guest_hostile", now):
                self._write("\n".join(HOSTILE) + "\n")
            if self._strikes("guest_dies", now):
                self.state = GuestState.SILENT
        elif status:  # somebody else has it by now, or it was cancelled
            self.state = GuestState.LISTENING

    def _work(self, now: datetime) -> None:
        if now >= self._until:
            self.state = GuestState.FINISHING
        elif now - self._renewed >= RENEW:
            self._renewed = now
            _, answer = self._ask("POST", self._job_url("renew"), self._session, {})
            if answer.get("cancelled"):
                self._result, self.state = "Canceled", GuestState.FINISHING

    def _finish(self) -> None:
        status, _ = self._ask("POST", self._job_url("finish"), self._session, {"result": self._result})
        if status:  # also when the answer to the first time was lost: the registration is gone then
            self._runner(f"Job {self._job['jobDisplayName']} completed with result: {self._result}")
            self._say(f"job finished {self._result}")
            self._switch_off()

    def _job_url(self, what: str) -> str:
        return f"{self.orders.url}/jobs/{self._job['jobId']}/{what}"

    def _give_up(self, answer: dict[str, Any]) -> None:
        self._runner(f"An error occurred: {answer.get('message', 'refused')}")
        self._say("failed the runner ended with status 1")
        self._switch_off()

    def _switch_off(self) -> None:
        self._say("over")
        log = "".join(f"{LOG_LINE}{line}\n" for line in self._log)
        messages = "\n".join(self._said)
        self._write(f"\n{PREFIX}log begins\n{log}{PREFIX}log ends\n{messages}\n")
        self.state = GuestState.OFF

    def _runner(self, line: str) -> None:
        self._log.append(line)

    def _say(self, text: str) -> None:
        self._said.append(PREFIX + text)
        self._write(f"\n{PREFIX}{text}\n")
