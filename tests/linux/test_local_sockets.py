"""A socket is reached by its name, however long the path of its directory is."""

from __future__ import annotations

import socket
from pathlib import Path

from paddock.linux import local_sockets


def far(tmp_path: Path) -> Path:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory


def test_one_in_a_directory_with_a_long_path_is_reached(tmp_path: Path) -> None:
    directory = far(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        with local_sockets.reached(directory) as short:
            listener.bind(f"{short}/door")
        listener.listen(1)
        peer = local_sockets.connect(directory, "door")
        assert peer is not None
        with peer, listener.accept()[0] as accepted:
            accepted.sendall(b"hello")
            peer.setblocking(True)
            assert peer.recv(5) == b"hello"


def test_where_nobody_listens_there_is_none(tmp_path: Path) -> None:
    directory = far(tmp_path)
    assert local_sockets.connect(directory, "door") is None
    with socket.socket(socket.AF_UNIX) as listener, local_sockets.reached(directory) as short:
        listener.bind(f"{short}/door")
    assert local_sockets.connect(directory, "door") is None
    assert local_sockets.connect(tmp_path / "absent", "door") is None
