"""Clients of GitHub: its REST API and its runner scale sets.

`client.py` has the calls of one enrolment, `scale_sets.py` those of scale sets, whose messages `messages.py` parses.
Both call through `api.py` and `set_service.py`, which add tokens, keep to limits and classify errors; `line.py`, which
repeats calls; and `runtime/http.py`, which opens connections. `answers.py` has the types of the answers.

REST, below ``https://api.github.com`` or ``https://HOST/api/v3``; O is an owner, R a repository, T is
``/repos/O/R`` or ``/orgs/O``:

| call | for |
|---|---|
| ``GET T/installation`` (JWT) | the app's installation |
| ``POST /app/installations/{id}/access_tokens`` (JWT) | its token |
| ``GET /installation/repositories`` (app), ``GET /orgs/O/repos`` (token), ``GET /repos/O/R`` | what is enrolled |
| ``GET /orgs/O/actions/runner-groups`` | id of a runner group |
| ``POST T/actions/runners/generate-jitconfig`` | registers a runner |
| ``GET T/actions/runners``, with ``?name=``, ``GET`` and ``DELETE T/actions/runners/{id}`` | runners |
| ``POST T/actions/runners/registration-token`` | what a scale set's client logs in with |
| ``GET /repos/O/R/contents/{path}`` (raw, ``If-None-Match``) | `.cirun.yml` and its like |
| ``GET /repos/O/R/actions/runs?status=``, ``.../{id}``, ``.../{id}/jobs?filter=latest`` | runs, jobs |
| ``GET /repos/O/R/actions/jobs/{id}`` | one job |
| ``POST /repos/O/R/actions/runs/{id}/cancel`` | ends a run |
| ``GET /app/hook/deliveries``, ``POST .../{id}/attempts`` (JWT) | deliveries of an app's webhook |
| ``GET T/hooks``, ``GET T/hooks/{id}/deliveries``, ``POST .../{id}/attempts`` | the same of a webhook |
| ``GET /repos/O/R/collaborators/{user}/permission`` | a user's role |
| ``GET /orgs/O/teams/{slug}/memberships/{user}`` | whether a user is in a team |
| ``GET /repos/O/R/pulls/{n}``, ``GET /repos/O/R/pulls?head=owner:branch&state=all`` | a pull request |
| ``POST /repos/O/R/statuses/{sha}`` | what people see at the commit |

Scale sets: ``POST /actions/runner-registration`` of REST gives an address and an admin token; below that address,
always with ``?api-version=6.0-preview``:

| call | for |
|---|---|
| ``GET _apis/runtime/runnergroups/?groupName=`` | id of a runner group; the default one has the id 1 |
| ``GET _apis/runtime/runnerscalesets?runnerGroupId=&name=``, ``POST`` | a scale set by name, a new one |
| ``GET``, ``PATCH``, ``DELETE .../{id}`` | the same by id |
| ``POST .../{id}/sessions``, ``PATCH .../{id}/sessions/{session}``, ``DELETE`` | a session, its new token, its end |
| ``GET`` the session's ``messageQueueUrl`` with ``lastMessageId=`` | the next message, after at most 50 s |
| ``DELETE`` of it, with ``/{message}`` added to its path | acknowledges |
| ``POST .../{id}/acquirejobs`` | takes jobs that are available |
| ``POST .../{id}/generatejitconfig`` | registers a runner |
| ``GET _apis/distributedtask/pools/0/agents?agentName=``, ``DELETE .../{id}`` | runners |
"""
