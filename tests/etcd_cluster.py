"""Members of an etcd cluster as processes of their own, on free loopback ports."""

import shutil
import socket
import subprocess
from importlib.util import find_spec

from tests.absent import absent


def needs_etcd():
    """Skip the test where etcd cannot be run; under CI, fail it."""
    if shutil.which("etcd") is None:
        absent("no etcd here; apt-get install etcd-server")
    if find_spec("httpx2") is None:
        absent("no httpx2 here; pip install 'pipelined[etcd]'")


class EtcdCluster:
    """Three members, or as many as told.

    Args:
        folder: for their data.
        tls: the files of a key and a certificate by which clients are to know the members.
    """

    def __init__(self, folder, size=3, tls=None):
        self._folder, self._tls = folder, tls
        ports = _free_ports(2 * size)
        self.clients, self._peers = ports[:size], ports[size:]
        self._processes = [None] * size

    def __enter__(self):
        for member in range(len(self._processes)):
            self.start(member)
        return self

    def __exit__(self, *exc):
        for member, process in enumerate(self._processes):
            if process is not None:
                self.kill(member)

    def url(self, namespace):
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self.clients)}/{namespace}"

    def start(self, member):
        peers = [f"http://127.0.0.1:{port}" for port in self._peers]
        client = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.clients[member]}"
        options = {
            "name": f"m{member}",
            "data-dir": self._folder / f"m{member}",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers[member],
            "initial-advertise-peer-urls": peers[member],
            "initial-cluster": ",".join(f"m{each}={peer}" for each, peer in enumerate(peers)),
            "heartbeat-interval": 50,
            "election-timeout": 500,
            "log-level": "error",
        }
        if self._tls:
            options["key-file"], options["cert-file"] = self._tls
        command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        with open(self._folder / f"m{member}.log", "ab") as log:
            self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, member):
        """kill -9."""
        self._processes[member].kill()
        self._processes[member].wait()
        self._processes[member] = None


def _free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
