"""Generates nginx.conf of the gateway. Paths in it are relative: to its own folder, and to the one that nginx is
started in.

Of a request only what is named here comes through: method and path by the table of openings, headers by a list. So
nothing that a client writes into a header can pass for what a gateway says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuyard.deployment.gateway.openings import CLEAN, HOOK, HORIZON, PORTAL, SOCKETS, STREAM, closed, openings_of
from gpuyard.site.gateway_rules import CONSOLES, HTTP, HTTPS, METHODS, PublicEndpoint, PublicName, SiteGateway, Socket

API_HEADERS = (
    "Accept", "Accept-Encoding", "Content-Type", "If-Match", "If-None-Match", "OpenStack-API-Version",
    "OpenStack-Auth-Receipt", "Range", "User-Agent", "X-Auth-Token", "X-Image-Meta-Store",
    "X-OpenStack-Image-Size", "X-OpenStack-Nova-API-Version", "X-Subject-Token",
)  # fmt: skip
BROWSER_HEADERS = ("Cookie", "Origin", "Referer", "Sec-Fetch-Site")
PORTAL_HEADERS = (
    "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Content-Type", "Idempotency-Key", "If-Match",
    "If-None-Match", "Last-Event-ID", "User-Agent", "X-Auth-Token", "X-CSRF-Token", "X-GitHub-Delivery",
    "X-GitHub-Event", "X-GitHub-Hook-Installation-Target-Type", "X-Gpuyard-Idle", "X-Hub-Signature-256",
    *BROWSER_HEADERS,
)  # fmt: skip
DASHBOARD_HEADERS = (
    "Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "If-Modified-Since", "If-None-Match", "User-Agent",
    "X-CSRFToken", "X-Horizon-Add-To-Field", "X-Horizon-Validate-Step-End", "X-Horizon-Validate-Step-Start",
    "X-Requested-With", *BROWSER_HEADERS,
)  # fmt: skip
UPLOAD_HEADERS = ("Access-Control-Request-Headers", "Access-Control-Request-Method", "Origin")
"""Headers with which a page of Horizon uploads an image to Glance."""
CONSOLE_HEADERS = (
    "Accept", "Accept-Encoding", "Accept-Language", "If-Modified-Since", "Origin", "Sec-WebSocket-Key",
    "Sec-WebSocket-Protocol", "Sec-WebSocket-Version", "User-Agent",
)  # fmt: skip
IDLE_CONSOLE = "1h"
"""Time after which a console in which nothing happens is closed."""
HSTS = "max-age=63072000"
TLS_HEADER, TLS_VALUE = "X-Forwarded-Ssl", "on"
"""The header that tells Horizon that a request came by TLS: Kolla's HAProxy removes X-Forwarded-Proto where it speaks
none itself."""
WEBHOOK_BODY = 25 << 20
"""Bytes of the largest webhook that GitHub sends."""
DRAIN = "30m"
"""Time for which requests that are being answered may go on after a reload; then the rest of them is cut off."""
REFUSALS = {
    403: "This gateway passes on what clients of the cloud need, for addresses that may come. This method and path, or "
    "your address, are not among them; who runs the cloud says which are under 'gateway' in the site file.",
    413: "The body is larger than this gateway passes on; who runs the cloud sets how large it may be under "
    "'gateway: limits' in the site file.",
    421: "This is not the name that the connection was made for; ask by the name that is in the address.",
    429: "Too many requests come from your address; wait a second, and send fewer at a time.",
    502: "The gateway does not reach the cloud: the tunnel or the service is down. Try again in a minute.",
    504: "The cloud has not answered in time. What was asked for may have been done all the same: look before you ask "
    "again.",
}

MAIN = """\
worker_processes auto;
worker_shutdown_timeout {drain};
pid nginx.pid;
# Lines about requests would have all of their paths, and with them secrets of calendars. That one failed is in the
# access log.
error_log stderr crit;

events {{
    worker_connections 8000;
}}

http {{
    default_type application/octet-stream;
    server_tokens off;
    log_format gpuyard escape=json
        '{{"time":"$time_iso8601","from":"$remote_addr","name":"$server_name","port":"$server_port","method":"$request_method","path":"$gpuyard_path","status":$status,"bytes":$body_bytes_sent,'
        '"seconds":$request_time,"behind_s":"$upstream_response_time","request_id":"$gpuyard_request",'
        '"answer_id":"$upstream_http_x_openstack_request_id","agent":"$http_user_agent"}}';
    access_log syslog:server=unix:/dev/log,nohostname,tag=gpuyard_gateway gpuyard;

    # Who is slow is not waited for.
    client_header_timeout 10s;
    client_body_timeout 20s;
    send_timeout 30s;
    keepalive_timeout 30s;
    keepalive_requests 1000;
    reset_timedout_connection on;
    large_client_header_buffers 4 8k;
    client_max_body_size {body};
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path unused;
    uwsgi_temp_path unused;
    scgi_temp_path unused;

    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305;
    ssl_prefer_server_ciphers off;
    ssl_session_cache shared:gpuyard:5m;
    ssl_session_tickets off;
    ssl_certificate tls/fullchain.pem;
    ssl_certificate_key tls/privkey.pem;

    proxy_http_version 1.1;
    proxy_connect_timeout 5s;
    proxy_send_timeout 60s;
    proxy_read_timeout 120s;
    proxy_next_upstream off;
    proxy_redirect off;
    proxy_max_temp_file_size 0;
    # What is behind cannot send a request elsewhere.
    proxy_ignore_headers X-Accel-Redirect X-Accel-Expires X-Accel-Limit-Rate X-Accel-Charset;
    proxy_hide_header Strict-Transport-Security;
    proxy_pass_request_headers off;

    # Of IPv6 a client has a /64.
    map $binary_remote_addr $gpuyard_address {{
        default $binary_remote_addr;
        "~(?s)^(?<gpuyard_network>.{{8}}).{{8}}$" $gpuyard_network;
    }}
    map "$http_x_auth_token$http_authorization$http_cookie$http_x_hub_signature_256" $gpuyard_stranger {{
        default "";
        "" $gpuyard_address;
    }}
    limit_req_zone $gpuyard_address zone=gpuyard_requests:10m rate={requests}r/s;
    limit_req_zone $gpuyard_stranger zone=gpuyard_strangers:10m rate={without_token}r/s;
    limit_req_zone $gpuyard_address zone=gpuyard_logins:10m rate={without_token}r/s;
    limit_conn_zone $gpuyard_address zone=gpuyard_connections:10m;
    limit_conn_zone $gpuyard_address zone=gpuyard_streams:10m;
    limit_req_status 429;
    limit_conn_status 429;

    # A request keeps the id that its client gave it, in OpenStack's form, or gets one.
    map $request_id $gpuyard_new_request {{
        "~^(?<gpuyard_a>.{{8}})(?<gpuyard_b>.{{4}})(?<gpuyard_c>.{{4}})(?<gpuyard_d>.{{4}})(?<gpuyard_e>.{{12}})$"
            "req-$gpuyard_a-$gpuyard_b-$gpuyard_c-$gpuyard_d-$gpuyard_e";
    }}
    map $http_x_openstack_request_id $gpuyard_request {{
        default $gpuyard_new_request;
        "~^req-[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}$" $http_x_openstack_request_id;
    }}
    # For the log: no queries, and no secrets of calendars.
    map $request_uri $gpuyard_path {{
        default "-";
        "~/ical/" "/ical/...";
        "~^(?<gpuyard_before_query>[^?]*)" $gpuyard_before_query;
    }}
    # A path that can be read in one way only.
    map $request_uri $gpuyard_clean {{
        default 0;
        "~^{clean}$" 1;
    }}
    geo $gpuyard_operator {{
        default 0;
{operators}    }}
"""
WEBSOCKETS = f"""\
    # Of consoles alone, and of these where their WebSockets are.
    map "$uri $http_upgrade" $gpuyard_upgrade {{
        default "";
        "~*^(?:{"|".join(SOCKETS)}) websocket$" websocket;
    }}
    map $gpuyard_upgrade $gpuyard_upgraded {{
        default close;
        websocket upgrade;
    }}
    # The page of SPICE has its token in a cookie. Other cookies of that name are not for it.
    map $cookie_token $gpuyard_console_cookie {{
        default "";
        "~^[A-Za-z0-9-]+$" "token=$cookie_token";
    }}
"""


def nginx_conf(gateway: SiteGateway, behind: Mapping[str, Socket], webhook: bool) -> str:
    """Return ``nginx.conf``. `behind`: where each endpoint leads, as the gateway reaches it. `webhook`: whether
    GitHub's pass."""
    limits = gateway.limits
    text = MAIN.format(
        drain=DRAIN, body=limits.body, requests=limits.requests, without_token=limits.without_token, clean=CLEAN,
        operators="".join(f"        {operator} 1;\n" for operator in gateway.operators),
    )  # fmt: skip
    text += WEBSOCKETS if gateway.consoles else ""
    for name in gateway.endpoints:
        text += _map(name, [opening.pattern for opening in openings_of(name, gateway)], webhook)
    places = {endpoint.public for endpoint in gateway.endpoints.values()}
    text += _plain({place.name: PublicName(place.name, HTTPS) in places for place in sorted(places)})
    for port in sorted({place.port for place in places}):
        text += _nobody(port)
    for name, endpoint in gateway.endpoints.items():
        text += "\n".join(_server(name, endpoint, behind[name], gateway, webhook)) + "\n"
    return text + "}\n"


def _passes(name: str) -> str:
    """The variable that says whether a request may pass to an endpoint."""
    return f"$gpuyard_passes_{name.replace('-', '_')}"


def _map(name: str, openings: Iterable[str], webhook: bool) -> str:
    """1 for what may pass. Operators may all of an API and of Horizon; of portal and consoles what everybody may."""
    lines = [f'    map "$gpuyard_clean$gpuyard_operator $request_method $request_uri" {_passes(name)} {{']
    lines += ["        default 0;"]
    if name == PORTAL:
        lines += [f'        "~^.. [A-Z]+ {pattern}$" 0;' for pattern in closed(webhook)]
    elif name not in CONSOLES:
        lines += [f'        "~^11 (?:{"|".join(METHODS)}) " 1;']
    lines += [f'        "~^1. {pattern}$" 1;' for pattern in openings]
    return "\n".join([*lines, "    }", ""])


def _plain(names: Mapping[str, bool]) -> str:
    """Port 80: where certificates are asked for, and for names that are at 443, too, the way there."""
    text = _unknown(HTTP, "", "return 444;")
    for name, redirected in names.items():
        text += f"""
    server {{
        listen {HTTP};
        listen [::]:{HTTP};
        server_name {name};
        location ^~ /.well-known/acme-challenge/ {{
            default_type text/plain;
            root acme;
        }}
        location / {{
            return {f"301 https://{name}$request_uri" if redirected else "404"};
        }}
    }}
"""
    return text


def _nobody(port: int) -> str:
    """For names that are not ours: no handshake, and where there was one by another name, no answer to speak of."""
    return _unknown(port, " ssl", "ssl_reject_handshake on;\n        return 421;")


def _unknown(port: int, ssl: str, lines: str) -> str:
    return f"""
    server {{
        listen {port}{ssl} default_server;
        listen [::]:{port}{ssl} default_server;
        {lines}
    }}
"""


def _server(name: str, endpoint: PublicEndpoint, behind: Socket, gateway: SiteGateway, webhook: bool) -> Iterator[str]:
    port = endpoint.public.port
    allowed = endpoint.allow if endpoint.allow is not None else gateway.allow
    yield f"""
    # {name}
    server {{
        listen {port} ssl;
        listen [::]:{port} ssl;
        server_name {endpoint.public.name};
        add_header Strict-Transport-Security "{HSTS}" always;"""
    yield from (f"        allow {network};" for network in allowed)
    if allowed:
        yield "        deny all;"
    yield f"""        if ($ssl_server_name !~* "^{re.escape(endpoint.public.name)}$") {{
            return 421;
        }}
        if ({_passes(name)} = 0) {{
            return 403;
        }}
        {_everyone(gateway)}
        limit_req zone=gpuyard_strangers burst={gateway.limits.without_token * 10} nodelay;
        limit_conn gpuyard_connections {gateway.limits.connections};"""
    for header, value in {**_told(endpoint), **_passed_on(_headers(name, gateway)), **_told_more(name)}.items():
        yield f'        proxy_set_header {header} "{value}";'
    if name == HORIZON:
        # Horizon itself sets it where Kolla speaks TLS, and here Kolla does not.
        yield "        proxy_cookie_flags ~ secure;"
    # A page of noVNC has more files than a stranger may ask for at once.
    yield from _location("/", behind, [_everyone(gateway)] if name in CONSOLES else [])
    for location, lines in _special(name, gateway, webhook):
        yield from _location(location, behind, lines)
    yield from _refusals(name in (PORTAL, HORIZON, *CONSOLES))
    yield "    }"


def _headers(name: str, gateway: SiteGateway) -> Sequence[str]:
    """The headers of a client that are passed on to an endpoint."""
    if name in (PORTAL, HORIZON, *CONSOLES):
        return {PORTAL: PORTAL_HEADERS, HORIZON: DASHBOARD_HEADERS}.get(name, CONSOLE_HEADERS)
    if name == "identity" and gateway.single_sign_on:
        return (*API_HEADERS, *BROWSER_HEADERS)
    if name == "image" and gateway.dashboard is not None:
        return (*API_HEADERS, *UPLOAD_HEADERS)
    return API_HEADERS


def _told(endpoint: PublicEndpoint) -> dict[str, str]:
    """What is behind learns from the gateway alone who asks, and by which name and protocol."""
    host = endpoint.public.authority
    return {
        "Host": host,
        # OpenStack reads this one first, unquoted, and Kolla's HAProxy leaves it as it is.
        "Forwarded": f"for=$remote_addr;proto=https;host={host}",
        "X-Forwarded-For": "$remote_addr",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": host,
        "X-OpenStack-Request-ID": "$gpuyard_request",
        "X-Request-ID": "$gpuyard_request",
    }


def _told_more(name: str) -> dict[str, str]:
    if name == HORIZON:
        return {TLS_HEADER: TLS_VALUE}
    if name not in CONSOLES:
        return {}
    more = {"Upgrade": "$gpuyard_upgrade", "Connection": "$gpuyard_upgraded"}
    return {**more, "Cookie": "$gpuyard_console_cookie"} if name == "spice" else more


def _passed_on(headers: Sequence[str]) -> dict[str, str]:
    return {header: f"$http_{header.lower().replace('-', '_')}" for header in headers}


def _everyone(gateway: SiteGateway) -> str:
    return f"limit_req zone=gpuyard_requests burst={gateway.limits.requests * 4} nodelay;"


def _special(name: str, gateway: SiteGateway, webhook: bool) -> Iterator[tuple[str, Sequence[str]]]:
    """Locations that are not as the others are, and what is so in them. They have limits of their own where they set
    any."""
    limits = gateway.limits
    everyone = _everyone(gateway)
    logins = f"limit_req zone=gpuyard_logins burst={limits.without_token * 10} nodelay;"
    connections = f"limit_conn gpuyard_connections {limits.connections};"
    streams = f"limit_conn gpuyard_streams {limits.streams};"
    if name == "identity":
        # Whoever tries passwords may bring any token.
        yield "~ ^/v3/(?:auth/tokens|users/[^/]+/password)/?$", (everyone, logins)
    if name == "image":
        yield (
            "~ ^/v2/images/[^/]+/(?:file|stage)/?$",
            (
                f"client_max_body_size {limits.image};",
                "client_body_timeout 60s;",
                "proxy_request_buffering off;",
                "proxy_send_timeout 300s;",
                "proxy_read_timeout 600s;",
            ),
        )
    if name == HORIZON:
        yield "~ ^/auth/(?:login|password/[^/]+|totp/[^/]+)/?$", (everyone, logins)
        yield "^~ /static/", (everyone,)
    if name in CONSOLES:
        idle = (f"proxy_read_timeout {IDLE_CONSOLE};", f"proxy_send_timeout {IDLE_CONSOLE};")
        for path in SOCKETS:
            yield f"= {path}", (everyone, logins, connections, streams, *idle)
    if name == PORTAL:
        yield f"= {STREAM}", ("proxy_buffering off;", "proxy_read_timeout 1h;", connections, streams)
        yield "~ ^/login/?$", (everyone, logins)
        yield "^~ /static/", (everyone,)  # what the page for logging in is made of
        if webhook:
            from_github = [f"allow {network};" for network in gateway.webhooks_from]
            from_github += ["deny all;"] if from_github else ["allow all;"]
            yield f"= {HOOK}", (f"client_max_body_size {WEBHOOK_BODY};", everyone, *from_github)


def _location(location: str, behind: Socket, lines: Sequence[str] = ()) -> Iterator[str]:
    yield f"        location {location} {{"
    yield from (f"            {line}" for line in lines)
    yield f"            proxy_pass http://{behind};"
    yield "        }"


def _refusals(plain: bool) -> Iterator[str]:
    """In words. Clients of OpenStack show what is in `error`."""
    for code, words in REFUSALS.items():
        kind, text = "text/plain", words
        if not plain:
            kind, text = "application/json", f'{{"error": {{"code": {code}, "message": "{words}"}}}}'
        yield f"        error_page {code} @gpuyard_{code};"
        yield f"        location @gpuyard_{code} {{"
        yield f"            default_type {kind};"
        yield f'            add_header Strict-Transport-Security "{HSTS}" always;'
        if code in (429, 502):
            yield f"            add_header Retry-After {1 if code == 429 else 60} always;"
        yield f"            return {code} '{text.replace(chr(39), chr(92) + chr(39))}';"
        yield "        }"
