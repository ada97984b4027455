"""Nova's own proxies of consoles, in processes of their own, for the console of a server that is in a database alone.

``make NOVA_CONF KIND=PORT...`` makes the database and prints URLs of consoles at these ports, as Nova gives them to
people; ``novnc NOVA_CONF`` and ``serial NOVA_CONF`` are nova-novncproxy and nova-serialproxy. One thing is not Nova's:
nobody asks nova-compute whether the console is still at that port, since there is none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVER = "6f1d7e1c-0a55-4a39-8a3b-0d1d5b8f4c11"
SECTIONS = {"novnc": "vnc", "serial": "serial_console"}
ADDRESSES = {"novnc": "novncproxy_", "serial": "serialproxy_"}
BASES = {"novnc": "novncproxy_base_url", "serial": "base_url"}
LIFE_S, HOW_MANY = 600, 12


def nova_conf(folder: Path, ports: Mapping[str, int], options: Mapping[tuple[str, str], str]) -> Path:
    """The file that all of them read. `options`: what the site file means for Nova."""
    sections: dict[str, dict[str, object]] = {
        "DEFAULT": {"web": folder / "novnc", "state_path": folder, "transport_url": "fake:///"},
        "database": {"connection": f"sqlite:///{folder}/nova.sqlite"},
        "oslo_concurrency": {"lock_path": folder},
    }
    for kind, port in ports.items():
        own = sections.setdefault(SECTIONS[kind], {"enabled": True})
        own |= {f"{ADDRESSES[kind]}host": "127.0.0.1", f"{ADDRESSES[kind]}port": port}
    for (section, key), value in options.items():
        sections.setdefault(section, {})[key] = value
    text = "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
        for section, values in sections.items()
    )
    (folder / "nova.conf").write_text(text)
    return folder / "nova.conf"


def _make(conf: str, *consoles: str) -> None:
    import nova.conf
    from nova import config, context, objects
    from nova.db import migration
    from nova.db.main import api as database

    config.parse_args(["nova", "--config-file", conf])
    objects.register_all()
    migration.db_sync()
    admin = context.get_admin_context()
    database.instance_create(admin, {"uuid": SERVER, "host": "gpu-1", "project_id": "p", "user_id": "u"})
    urls: dict[str, list[str]] = {}
    for kind, _, port in (console.partition("=") for console in consoles):
        base = nova.conf.CONF[SECTIONS[kind]][BASES[kind]]
        for _ in range(HOW_MANY):
            console: Any = objects.ConsoleAuthToken(
                context=admin, console_type=kind, host="127.0.0.1", port=int(port), instance_uuid=SERVER,
                access_url_base=base,
            )  # fmt: skip
            console.authorize(LIFE_S)
            urls.setdefault(kind, []).append(console.access_url)
    print(json.dumps(urls))


class _Compute:
    def validate_console_port(self, *of: object) -> bool:
        return True


def _serve(kind: str, conf: str) -> None:
    if kind == "novnc":
        from nova.cmd.novncproxy import main
    else:
        from nova.cmd.serialproxy import main
    from nova.console import websocketproxy

    websocketproxy.NovaProxyRequestHandler.compute_rpcapi = _Compute()
    sys.argv = [f"nova-{kind}proxy", "--config-file", conf]
    main()


if __name__ == "__main__":
    _make(*sys.argv[2:]) if sys.argv[1] == "make" else _serve(*sys.argv[1:])
