"""The page that starts a server of one flavor: a form, and what is done with it.

Whatever has one choice is filled in. A form has an id, which its server carries: a form that is sent again, after a
lost answer or by a second click, leads to the server that it has started. A refusal shows the form again with all that
was typed, and deletes a key pair that was made for the server. Where Nova has not answered, the server may be starting:
then the form shows the new private key, which is kept nowhere. A portal that is killed between the key and the server
leaves a key pair behind that nobody has the private half of; the same form makes another one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gpuyard.host.pci_ids import PciIds
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.model.errors import UsageError
from gpuyard.model.text import counted
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import CONFLICT, FORBIDDEN, PersonalCloud, ServerOrder, TokenExpiredError
from gpuyard.servers.choices import NAME, LaunchChoices, order_images, suggested_name
from gpuyard.servers.keys import MADE_KEY, checked_public_key, new_key_pair
from gpuyard.servers.web.personal_access import PersonalAccess, refusal_of, refuse_reader
from gpuyard.site.gpu_generations import generation_of
from gpuyard.site.objects import FlavorObject
from gpuyard.web.assets import render
from gpuyard.web.forms import Form
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import Visitor, require_page_visitor, require_visitor
from gpuyard.web.problems import Refusal

NEW_KEY, PASTED_KEY = "+new", "+paste"
"""Values of the field ``key`` besides names of key pairs, in which Nova allows no plus."""
JUST_BEGUN = "If your booking has just begun, its GPUs are being released for you: try again in a few seconds."
SERVER_ERROR = 500
PATIENCE = 30.0
"""Seconds that a second click waits for the first."""
FORM_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True)
class LaunchAnswers:
    """What is in the form."""

    form: str
    name: str
    image: str = ""
    network: str = ""
    key: str = ""
    public_key: str = ""

    @classmethod
    def of(cls, form: dict[str, str]) -> LaunchAnswers:
        id = form.get("form", "")
        return cls(
            form=id if FORM_ID.fullmatch(id) else secrets.token_urlsafe(16),
            name=form.get("name", "").strip(),
            image=form.get("image", ""),
            network=form.get("network", ""),
            key=form.get("key", ""),
            public_key=form.get("public_key", "").strip(),
        )


@dataclass(frozen=True)
class LaunchView:
    """The page: the choices, what is filled in, and what is wrong with it."""

    choices: LaunchChoices
    answers: LaunchAnswers
    gpus: str
    """``1 GPU of t4``; empty for a flavor without."""
    problems: Sequence[str] = ()
    private_key: str = field(default="", repr=False)
    """A key that was made for this server, to be saved now."""
    server: str = ""
    """Id of the server that has been started; empty: none yet."""


def install(app: FastAPI, context: InventoryContext, flavors: Sequence[FlavorObject], access: PersonalAccess) -> None:
    """Add the page. `flavors`: those of the site, by which it knows which GPUs a server gets."""
    LaunchPages(context, {flavor.name: flavor for flavor in flavors}, access).install(app)


class LaunchPages:
    def __init__(self, context: InventoryContext, flavors: dict[str, FlavorObject], access: PersonalAccess) -> None:
        self._context, self._flavors, self._access = context, flavors, access
        self._pci_ids = PciIds.of_this_machine()
        self._lock = Lock()
        self._forms: dict[str, tuple[Lock, int]] = {}
        """Id of a form that is being worked on -> its lock, and how many requests have or want it."""

    def install(self, app: FastAPI) -> None:
        @app.get("/launch", include_in_schema=False)
        def launch_form(request: Request, flavor: Annotated[str, Query(max_length=255)] = "") -> Response:
            visitor = require_page_visitor(request)
            if not flavor:
                return RedirectResponse("start", 303)
            refuse_reader(visitor)
            with self._access.opened(request, visitor) as cloud:
                choices = self._choices(cloud, flavor)
            return self._page(request, visitor, self._view(choices, _defaults(choices, visitor, self._pool(flavor))))

        @app.post("/launch", include_in_schema=False)
        def launch(request: Request, form: Form) -> Response:
            visitor = require_visitor(request)
            refuse_reader(visitor)
            with self._access.opened(request, visitor) as cloud:
                view = self._view(self._choices(cloud, form.get("flavor", "")), LaunchAnswers.of(form))
                return self._launch(request, visitor, cloud, view)

    def _launch(self, request: Request, visitor: Visitor, cloud: PersonalCloud, view: LaunchView) -> Response:
        """Add the key, start the server, and show it; or show the form again with the reasons."""
        problems = _problems(view)
        if problems:
            return self._page(request, visitor, replace(view, problems=problems), 422)
        ordered: LaunchView | None = None
        try:
            with self._one_at_a_time(view.answers.form):
                if server := cloud.started(view.answers.form):
                    return RedirectResponse(f"server?id={server}", 303)
                ordered = self._with_key(cloud, view, visitor)
                server = self._started(cloud, ordered)
        except UsageError as error:
            cleared = replace(view.answers, public_key="")  # it may be a private one
            return self._page(request, visitor, replace(view, answers=cleared, problems=[str(error)]), 422)
        except (CloudError, TokenExpiredError) as error:
            refusal = refusal_of(error)
            problems = [refusal.detail, *([JUST_BEGUN] if refusal.status == FORBIDDEN else [])]
            # Nobody knows whether Nova has taken an order that it did not answer: then the key may be needed.
            shown = ordered if refusal.status >= SERVER_ERROR and ordered is not None else view
            return self._page(request, visitor, replace(shown, problems=problems), refusal.status)
        if ordered.private_key:
            return self._page(request, visitor, replace(ordered, server=server))
        return RedirectResponse(f"server?id={server}", 303)

    def _started(self, cloud: PersonalCloud, view: LaunchView) -> str:
        """Start the server and return its id. When Nova refuses it, a key that was made for it goes again. Raises
        CloudError, TokenExpiredError."""
        try:
            return cloud.start(_order(view))
        except CloudError as error:
            if view.private_key and error.status is not None and error.status < SERVER_ERROR:
                with suppress(CloudError):  # the reason of the refusal says more
                    cloud.delete_key(view.answers.key)
            raise

    def _with_key(self, cloud: PersonalCloud, view: LaunchView, visitor: Visitor) -> LaunchView:
        """Return the view with the name of a key pair of Nova's, and with the private key of a new one. Raises
        UsageError, CloudError, TokenExpiredError."""
        answers = view.answers
        if answers.key not in (NEW_KEY, PASTED_KEY):
            return view
        name = f"{suggested_name(visitor.person.user, '')}-{self._context.now():%Y%m%d}-{answers.form[:6]}"
        private = ""
        if answers.key == NEW_KEY:
            name = f"{MADE_KEY}{name}"
            pair = new_key_pair(name)
            public, private = pair.public, pair.private
        else:
            public = checked_public_key(answers.public_key)
        name = _added(cloud, name, public, answers.form)
        choices = replace(view.choices, keys=[*view.choices.keys, name])
        return replace(view, choices=choices, answers=replace(answers, key=name), private_key=private)

    @contextmanager
    def _one_at_a_time(self, form: str) -> Iterator[None]:
        """Hold back a second request with the same form until the first is answered: browsers send two for two
        clicks. Of this process alone: two portals that get a click each start two servers. Raises Refusal when it takes
        too long."""
        with self._lock:
            lock, waiting = self._forms.get(form, (Lock(), 0))
            self._forms[form] = (lock, waiting + 1)
        try:
            if not lock.acquire(timeout=PATIENCE):
                raise Refusal(
                    503, "busy", "The same form is being worked on; look at My servers in a moment.", retry_after=10
                )
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._lock:
                lock, waiting = self._forms.pop(form)
                if waiting > 1:
                    self._forms[form] = (lock, waiting - 1)

    def _choices(self, cloud: PersonalCloud, flavor: str) -> LaunchChoices:
        """Return the choices for a flavor. Raises Refusal, CloudError, TokenExpiredError."""
        own = next((candidate for candidate in cloud.flavors() if candidate.name == flavor), None)
        if own is None:
            raise Refusal(404, "not_found", f"Your project sees no flavor {flavor!r}; choose one at What can I start.")
        pool = self._pool(flavor)
        gpu = next((gpu for gpu in self._context.gpus if gpu.pool == pool), None)
        generation = generation_of(gpu.ids, self._pci_ids) if gpu else None
        images = order_images(cloud.images(), own, gpu.model if gpu else "", generation)
        networks = [network for network in cloud.networks() if network.attachable]
        return LaunchChoices(own, images, networks, cloud.key_names())

    def _pool(self, flavor: str) -> str:
        known = self._flavors.get(flavor)
        return (known.pool or "") if known else ""

    def _view(self, choices: LaunchChoices, answers: LaunchAnswers) -> LaunchView:
        known = self._flavors.get(choices.flavor.name)
        gpus = f"{counted(known.gpus, 'GPU')} of {known.pool}" if known and known.gpus else ""
        return LaunchView(choices, answers, gpus)

    def _page(self, request: Request, visitor: Visitor, view: LaunchView, status: int = 200) -> HTMLResponse:
        html = render(
            "launch.html", site=self._context.site_name, view=view,
            # Whoever looks at another project from here begins anew.
            nav=replace(navigation_of(visitor, request), here="/mine"),
            new_key=NEW_KEY, pasted_key=PASTED_KEY,
        )  # fmt: skip
        # The token of the session is in it, and perhaps a private key.
        return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def _added(cloud: PersonalCloud, name: str, public: str, form: str) -> str:
    """Add a key pair, and return its name: another one where that is taken, as by an order whose answer was lost."""
    try:
        cloud.add_key(name, public)
    except CloudError as error:
        if error.status != CONFLICT:
            raise
        name = f"{name}-{form[6:12]}"
        cloud.add_key(name, public)
    return name


def _defaults(choices: LaunchChoices, visitor: Visitor, pool: str) -> LaunchAnswers:
    """Return the form as it is shown first."""
    return LaunchAnswers(
        form=secrets.token_urlsafe(16),
        name=suggested_name(visitor.person.user, pool),
        image=next((image.id for image in choices.images if not image.too_large), ""),
        network=choices.networks[0].id if choices.networks else "",
        key=choices.keys[0] if choices.keys else NEW_KEY,
    )


def _problems(view: LaunchView) -> list[str]:
    """Return what is wrong with the answers, each with what to do."""
    choices, answers = view.choices, view.answers
    image = next((image for image in choices.images if image.id == answers.image), None)
    keys = {"", NEW_KEY, PASTED_KEY, *choices.keys}
    problems = [choices.problem] if choices.problem else []
    if not NAME.fullmatch(answers.name):
        problems.append("Name: letters, digits, dots and dashes, up to 63, and a letter or a digit first.")
    if image is None:
        problems.append("Image: choose one of the list.")
    elif image.too_large:
        problems.append(f"Image: {image.name} {image.note}, more than flavor {choices.flavor.name} has.")
    if answers.network and answers.network not in {network.id for network in choices.networks}:
        problems.append("Network: choose one of the list.")
    if answers.key not in keys:
        problems.append("Key: choose one of the list.")
    elif answers.public_key and answers.key != PASTED_KEY:
        problems.append('Key: there is a public key below; choose "the public key below", or clear it.')
    return problems


def _order(view: LaunchView) -> ServerOrder:
    answers = view.answers
    return ServerOrder(answers.name, view.choices.flavor.id, answers.image, answers.network, answers.key, answers.form)
