"""The fields of a form that a browser has posted, for handlers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from gpuyard.web.access import form_of


async def _form(request: Request) -> dict[str, str]:
    return form_of(request, await request.body())  # which the middleware has read, up to a length


Form = Annotated[dict[str, str], Depends(_form)]
"""The fields, the first value of each; empty when the body is no form."""
