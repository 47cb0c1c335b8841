"""Milvus standalone from the PyPI package ``milvus``, as a process that tests may kill and start again.

The package is looked for in this Python, or in the one that LOOKALIKE_MILVUS_PYTHON names, for example that of a venv
of its own. Run as a script, this file is the process: ``python milvus_standalone.py DATA_FOLDER PORT``.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PYTHON = os.environ.get("LOOKALIKE_MILVUS_PYTHON", sys.executable)
SECONDS = 300  # to start on a busy machine


def is_installed() -> bool:
    return subprocess.run([PYTHON, "-c", "import milvus"], capture_output=True).returncode == 0


class Standalone:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.pid = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [PYTHON, __file__, str(self.folder), str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "Milvus did not start"
        self.pid = int(line)

    def kill(self) -> None:
        """As a power cut would: nothing is flushed."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()


def listen(port: int) -> socket.socket | None:
    """Try a port. The package's own try fails for a minute after a kill, until the last connections are forgotten."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


def main() -> None:
    from milvus import MilvusServer

    folder, port = sys.argv[1:]
    server = MilvusServer(data_dir=folder, proxy_port=int(port), wait_for_started=False)
    server.config.try_bind_port = listen
    server.start()
    server.wait_started(1000 * SECONDS)
    print(server.server_proc.pid, flush=True)
    server.server_proc.wait()  # server.wait() does not notice that the process was killed


if __name__ == "__main__":
    main()
