"""The endpoint that tells the visitor their user, projects and roles."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel, Field

from gpuyard.model.rights import Verb, may
from gpuyard.web.api_requests import Who
from gpuyard.web.problems import documented


class UserDocument(BaseModel):
    id: str
    name: str
    email: str


class ProjectDocument(BaseModel):
    id: str
    name: str
    roles: list[str]


class Me(BaseModel):
    """The person who asks."""

    user: UserDocument
    project: ProjectDocument = Field(description="The one that is looked at, or the token's.")
    projects: list[ProjectDocument] = Field(description="All of the person's; with a token, the token's.")
    roles: list[str] = Field(description="In the project.")
    admin: bool = Field(description="May do everything, in any project.")
    may_book: bool
    csrf: str = Field(description="To send as X-CSRF-Token with changes; empty with a token.")


def install(app: FastAPI) -> None:
    @app.get("/v1/me", tags=["people"], responses=documented(401, 403, 503))
    def who_am_i(visitor: Who) -> Me:
        """The person who asks, the project, and the roles there."""
        person = visitor.person
        current = ProjectDocument(id=person.project_id, name=person.project, roles=sorted(person.roles))
        return Me(
            user=UserDocument(id=person.user_id, name=person.user, email=person.email),
            project=current,
            projects=[
                ProjectDocument(id=project.project_id, name=project.project, roles=sorted(project.roles))
                for project in visitor.projects
            ],
            roles=current.roles,
            admin=person.admin,
            may_book=bool(may(person, Verb.BOOK)),
            csrf=visitor.csrf,
        )
