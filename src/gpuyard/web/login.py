"""The login page, single sign-on, logging out, and the choice of the project to look at.

A login begins a new session and ends the one that the browser had, since others may know its cookie. A token from
single sign-on is accepted only when Keystone's own page posted it, only when it comes from a federated login, and
only once: browsers post it again when somebody goes back after logging out.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gpuyard.model.errors import UsageError
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import Login, LoginRefusedError, TokenFacts
from gpuyard.web.assets import render
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.forms import Form
from gpuyard.web.gateway import is_same_site, public_url, up_from
from gpuyard.web.people import require_visitor
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.problems import Refusal, unavailable
from gpuyard.web.settings import PortalSettings

NEXT = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,2000}")
FAILED = "logins that failed"
SAID = {
    "refused": (
        "Keystone does not let you in: your account at the identity provider has no place in this cloud, or its mail "
        "address is not verified there. Ask who runs the site."
    ),
    "left": (
        "You have logged out here. Single sign-on still knows this browser: whoever uses it next gets in without a "
        "password until you log out there, too."
    ),
}
"""Texts of the login page about single sign-on, by `sso` in its query."""
IN_GROUPS = (
    " Single sign-on has put you into groups: either these have no role here, or Keystone forgets who is in them at "
    "once, and its operator has to set [federation] default_authorization_ttl."
)
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoginPage:
    """The page on which people log in."""

    site: str
    settings: PortalSettings

    def show(
        self, request: Request, status: int = 200, error: str = "", next: str = "", user: str = "", left: bool = False
    ) -> HTMLResponse:
        """Return the page. `left`: the reader has just logged out."""
        settings, sso = self.settings, ""
        if settings.websso:
            back = f"{public_url(request, settings.trusted_gateways, settings.public_url)}/login/sso"
            sso = f"{settings.websso_page}?origin={quote(back, safe='')}"
        html = render(
            "login.html",
            site=self.site,
            domain=settings.domain,
            error=error,
            next=next if NEXT.fullmatch(next) else "",
            user=user,
            sso=sso,
            left=settings.websso_logout if left else "",
            status=settings.public_status,
            launches=settings.keeps_tokens,
            up=up_from(request.url.path).removeprefix("./"),
        )
        # Nothing of this page is to be found in a browser's cache.
        return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})

    def refuse(self, request: Request, refusal: Refusal, form: dict[str, str]) -> Response:
        """Return the page again, with the reason why the login was refused."""
        answer = self.show(request, refusal.status, refusal.detail, form.get("next", ""), form.get("user", ""))
        answer.headers.update(refusal.headers)
        return answer


def install(app: FastAPI, sources: PortalContext, authenticator: Authenticator) -> None:
    settings = authenticator.settings
    _refuse_wrong_addresses(settings)
    page = LoginPage(sources.site_name, settings)

    @app.get("/login", include_in_schema=False)
    def login_page(request: Request, next: str = "", sso: str = "") -> Response:
        message = SAID.get(sso, "") if settings.websso else ""
        return page.show(request, error=message, next=next, left=sso == "left")

    @app.post("/login", include_in_schema=False)
    def log_in(request: Request, form: Form) -> Response:
        try:
            return _enter(
                request, authenticator, _by_password(request, authenticator, form), None, form.get("next", "")
            )
        except Refusal as refusal:
            return page.refuse(request, refusal, form)

    @app.post("/login/sso", include_in_schema=False)
    def single_sign_on(request: Request, form: Form) -> Response:
        try:
            facts = _by_token(request, authenticator, form)
            login = Login(facts.user_id, form.get("token", ""), facts.expires)
            try:
                return _enter(request, authenticator, login, facts.expires, "", IN_GROUPS if facts.in_groups else "")
            except Refusal:
                authenticator.revoke(login.token)  # no session keeps it
                raise
        except Refusal as refusal:
            return page.refuse(request, refusal, {})

    @app.post("/logout", include_in_schema=False)
    def log_out(request: Request, form: Form) -> Response:
        """Here, or, when the form says so, in all browsers of the user's, and delete their feeds."""
        visitor = require_visitor(request)
        authenticator.end(request)
        if form.get("everywhere"):
            authenticator.end_all(visitor.person.user_id)
        answer = RedirectResponse("login?sso=left" if settings.websso else "login", 303)
        authenticator.clear_cookie(request, answer)
        return answer

    @app.post("/project", include_in_schema=False)
    def switch_project(request: Request, form: Form) -> Response:
        """To the project whose id is in the form."""
        visitor = require_visitor(request)
        if visitor.session is None:
            raise Refusal(403, "no_session", "A token is for one project; get one for the other.")
        project_id = form.get("project", "")
        if project_id not in {membership.project_id for membership in visitor.projects}:
            raise Refusal(403, "no_role", "You have no role in that project; choose one of yours.")
        authenticator.sessions.switch(visitor.session, project_id)
        return RedirectResponse(after(form.get("next", "")), 303)


def _refuse_wrong_addresses(settings: PortalSettings) -> None:
    if settings.websso and not settings.websso_url.startswith(("https://", "http://")):
        raise UsageError("single sign-on needs the address of Keystone as browsers find it: pass --websso-url")
    if settings.websso_logout and not settings.websso_logout.startswith(("https://", "http://")):
        raise UsageError("--websso-logout is no address: it begins with https:// or http://")


def after(next: str) -> str:
    """Return where to go from a page at the root: only to a path of ours, whatever the address asked for."""
    # With the dot it is a path even when it looks like another site or has a colon in it.
    return f"./{next[1:].lstrip('/')}" if NEXT.fullmatch(next) else "./"


def _by_password(request: Request, authenticator: Authenticator, form: dict[str, str]) -> Login:
    """Return the login of the user whose password is in the form. Raises Refusal."""
    if not is_same_site(request, authenticator.settings.public_url):
        raise Refusal(403, "cross_site", "The login came from a page of another site; log in on this page.")
    user, password = form.get("user", "").strip(), form.get("password", "")
    domain = form.get("domain", "").strip() or authenticator.settings.domain
    if not user or not password or len(user) > 255 or len(domain) > 255 or len(password) > 4096:
        raise Refusal(422, "incomplete", "Type your user name and your password.")
    if not (user.isprintable() and domain.isprintable()) or "\0" in password:
        raise Refusal(422, "incomplete", "Type the name, the password and the domain without control characters.")
    name, address = f"{domain}\n{user}".lower(), authenticator.address(request)
    try:
        login = authenticator.guess(
            name, address, FAILED, lambda: authenticator.directory.log_in(user, password, domain)
        )
    except LoginRefusedError as error:
        LOG.warning("a login from %s was refused", address)  # not the name: people type passwords into the wrong field
        raise Refusal(403, "refused", str(error)) from None
    except CloudError as error:
        raise unavailable(error) from None
    assert login is not None
    authenticator.remember(name, address, login.user_id)
    return login


def _by_token(request: Request, authenticator: Authenticator, form: dict[str, str]) -> TokenFacts:
    """Return the facts of the token that Keystone's single sign-on has the browser post. It opens one session only:
    browsers post it again when somebody goes back to it after logging out.

    Raises Refusal, also for other tokens of Keystone's: those may do less than their user, and a session may do all."""
    settings, address = authenticator.settings, authenticator.address(request)
    if not settings.websso:
        raise Refusal(404, "not_found", "Single sign-on is not switched on here.")
    if request.headers.get("origin") != settings.keystone_origin:
        # Or any page could log somebody in as somebody else.
        raise Refusal(403, "cross_site", "The login did not come from Keystone's page; begin on this page.")

    def ask() -> TokenFacts | None:
        token = form.get("token", "")
        facts = authenticator.directory.login_token(token)
        return facts if facts and facts.federated and authenticator.use_login(token, facts) else None

    try:
        facts = authenticator.guess("", address, FAILED, ask)
    except CloudError as error:
        raise unavailable(error) from None
    if facts is None:
        text = (
            "Keystone does not accept the token of the login any more, or it is none of its single sign-on; try again."
        )
        raise Refusal(403, "refused", text)
    return facts


def _enter(
    request: Request, authenticator: Authenticator, login: Login, until: datetime | None, next: str, hint: str = ""
) -> Response:
    """Begin a new session, and end the one that this browser had: its cookie may be known to others. `until`: its end
    at the latest. `hint`: added to the refusal of somebody without a role."""
    authenticator.directory.logged_in(login.user_id)
    try:
        account = authenticator.directory.account(login.user_id)
    except CloudError as error:
        raise unavailable(error) from None
    if account is None:
        raise Refusal(403, "refused", "This user is disabled.")
    old = request.cookies.get(authenticator.cookie_name(request), "")
    try:
        cookie = authenticator.begin(account, authenticator.sessions.find(old), until, login.token)
    except Refusal as refusal:
        raise Refusal(refusal.status, refusal.code, refusal.detail + hint) from None
    authenticator.end(request)
    answer = RedirectResponse(up_from(request.url.path).removeprefix("./") + after(next), 303)
    authenticator.set_cookie(request, answer, cookie)
    return answer
