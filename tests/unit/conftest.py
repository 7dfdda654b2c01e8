"""What several unit tests share because it takes seconds to start."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.etcd_cluster import EtcdCluster, needs_etcd


@contextmanager
def _folder_in_memory():
    """A folder in memory, where the machine has a place for that: nothing waits for a disk there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def memory_path():
    with _folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def etcd():
    """Three members of an etcd cluster."""
    needs_etcd()
    with _folder_in_memory() as folder, EtcdCluster(folder) as cluster:
        yield cluster
