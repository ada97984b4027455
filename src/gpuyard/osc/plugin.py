"""Entry points of the `openstack` plugin: its options, its versions, and its client."""

from __future__ import annotations

import argparse
import os
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.portal import SERVICE_TYPE, session_for

API_NAME = "gpu"
API_VERSION_OPTION = "os_gpu_api_version"
API_VERSIONS = ("1",)
DEFAULT_API_VERSION = "1"


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options of `openstack` itself; its configuration takes them off the prefix ``os_``."""
    parser.add_argument(
        "--os-gpu-api-version",
        metavar="<gpu-api-version>",
        default=os.environ.get("OS_GPU_API_VERSION", DEFAULT_API_VERSION),
        help=f"GPU booking API version, default={DEFAULT_API_VERSION} (Env: OS_GPU_API_VERSION)",
    )
    parser.add_argument(
        "--os-gpu-endpoint-override",
        metavar="<url>",
        default=os.environ.get("OS_GPU_ENDPOINT_OVERRIDE") or os.environ.get("GPUYARD_URL"),
        help="Address of the portal, before what the catalogue says (Env: OS_GPU_ENDPOINT_OVERRIDE, GPUYARD_URL)",
    )
    return parser


def make_client(instance: Any) -> Client:
    """`instance` is the client manager of `openstack`: session, region, interface."""
    url = instance._cli_options.get_endpoint(SERVICE_TYPE) or ""
    session = session_for(instance.session, url, region=instance.region_name, interface=instance.interface or "public")
    return Client(session)
