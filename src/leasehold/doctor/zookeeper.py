"""ZooKeeper: the servers of the ensemble, and which of them leads."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from leasehold.doctor.clusters import members_finding
from leasehold.doctor.findings import Finding, Look

if TYPE_CHECKING:
    from leasehold.engines.zookeeper import ZooKeeperEngine, ZooKeeperFamily

SLOW_REQUEST_MS = 100.0


class _Server(NamedTuple):
    """What one server says of itself."""

    endpoint: str
    version: str
    mode: str
    latency: float
    """The longest that a request took, in milliseconds."""


def look(family: ZooKeeperFamily, _engine: ZooKeeperEngine, within: float) -> Look:
    """Ask each server that the URL names for ``srvr``, the word that ZooKeeper answers by default."""
    address = family.address
    if address.tls is not None:
        return Look("ZooKeeper", [Finding("settings", "note", "over TLS, servers cannot be asked for srvr")])
    findings, servers = [], []
    for endpoint in address.endpoints:
        try:
            text = _srvr(endpoint.host, endpoint.port, within)
        except OSError as error:
            findings.append(Finding("member", "warning", f"{endpoint} does not answer: {error}", "bring it back"))
            continue
        server = _server(str(endpoint), text)
        if server is None:
            fix = "add srvr to 4lw.commands.whitelist"
            findings.append(Finding("settings", "note", f"{endpoint} does not answer to srvr", fix))
        else:
            servers.append(server)
    if servers:
        findings = [_mode(servers, len(address.endpoints)), _latency(servers), *findings]
    return Look(f"ZooKeeper {servers[0].version}" if servers else "ZooKeeper", findings)


def _srvr(host: str, port: int, within: float) -> str:
    with socket.create_connection((host, port), within) as connection:
        connection.settimeout(within)
        connection.sendall(b"srvr")
        received = b""
        while len(received) < 65536 and (more := connection.recv(4096)):
            received += more
    return received.decode("utf-8", "replace")


def _server(endpoint: str, text: str) -> _Server | None:
    version, mode = re.search(r"version: ([\w.]+)", text), re.search(r"^Mode: (\w+)", text, re.MULTILINE)
    latency = re.search(r"min/avg/max: [\d.]+/[\d.]+/([\d.]+)", text)
    if version is None or mode is None:
        return None
    return _Server(endpoint, version[1], mode[1], float(latency[1]) if latency else 0.0)


def _mode(servers: list[_Server], named: int) -> Finding:
    modes = {server.mode for server in servers}
    if modes == {"standalone"}:
        return members_finding(1, "server")
    if "leader" in modes:
        return members_finding(named, "server")
    if named > len(servers):
        seen = "none of the servers that answer leads"
        return Finding("topology", "problem", seen, "bring servers back: a majority is missing")
    seen = f"followers only are named ({len(servers)}); the leader is elsewhere"
    return Finding("topology", "note", seen, "name all servers in the URL, so that any may fail")


def _latency(servers: list[_Server]) -> Finding:
    slowest = max(servers, key=lambda server: server.latency)
    seen = f"the longest request took {slowest.latency:g} ms (at {slowest.endpoint})"
    if slowest.latency > SLOW_REQUEST_MS * 10:
        return Finding("disk", "note", seen, "give dataLogDir a disk of its own, if this goes on")
    return Finding("disk", "ok", seen)
