"""The network interface that has a node's address: what gloo and NCCL have to be told where a group spans nodes."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping

import psutil
import ray

VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""Variable -> how an interface is named in it; without the equals sign NCCL takes every interface that begins so."""


def use_interface_of_node() -> None:
    """Name this node's interface to gloo and NCCL in this process; what the user has set stays.

    Left alone, gloo takes the address that the host's name stands for, which is 127.0.0.1 on many machines and in
    most containers, and NCCL the first interface that it finds.
    """
    interface = interface_of(ray.util.get_node_ip_address(), interface_addresses())
    if interface is not None:
        for variable, form in VARIABLES.items():
            os.environ.setdefault(variable, form.format(interface))


def interface_of(address: str, interfaces: Mapping[str, Iterable[str]]) -> str | None:
    """The interface that has an address; None for a loopback address, and where none has it (behind a translation).

    Args:
        address: IPv4 or IPv6.
        interfaces: name -> addresses.
    """
    if ipaddress.ip_address(address).is_loopback:
        return None
    return next((name for name, addresses in interfaces.items() if address in addresses), None)


def interface_addresses() -> dict[str, list[str]]:
    """Interfaces of this machine: name -> addresses."""
    return {
        name: [each.address.partition("%")[0] for each in addresses]
        for name, addresses in psutil.net_if_addrs().items()
    }
