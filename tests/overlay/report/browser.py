"""A headless Chromium, driven through chromedriver's own protocol: JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
#: Seconds for the driver to start, and for one command.
START, COMMAND = 30.0, 90.0
#: Keys, as the protocol names them.
TAB, ENTER, SPACE = "\ue004", "\ue007", " "


class Browser:
    """One browser window, from entering the context to leaving it."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._session = ""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        assert DRIVER is not None
        self._process = subprocess.Popen(
            [DRIVER, f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait()
            options = {
                "binary": CHROMIUM,
                "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            }
            wanted = {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
            }
            self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})[
                "sessionId"
            ]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            if self._session:
                self._ask("DELETE", f"/session/{self._session}")
        finally:
            self._process.terminate()
            self._process.wait(30)

    def show(self, page: Path, *, scheme: str = "light", width: int = 1200, offline: bool = True) -> None:
        """Open a page in a window of some width in CSS pixels, as a reader who prefers light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.cdp("Emulation.setEmulatedMedia", features=[feature])
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.cdp("Network.enable")
        self.cdp(
            "Network.emulateNetworkConditions",
            offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        self.log("performance")
        self._do("url", {"url": page.as_uri()})
        # What depends on the width is laid out in a frame that on a busy machine comes later.
        self.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function body in JavaScript returns; a promise is waited for."""
        return self._do("execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Run a command of the browser's own protocol."""
        return self._do("goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return what was logged since this was asked last."""
        found: list[dict[str, Any]] = self._do("se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """Return the addresses of what was asked of the network or the disk since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [item["params"] for item in messages if item["method"] == "Network.requestWillBeSent"]
        return [item["request"]["url"] for item in sent]

    def _do(self, command: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", f"/session/{self._session}/{command}", body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=COMMAND) as answer:  # noqa: S310 -- to this machine
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["value"]["message"]) from error

    def _wait(self) -> None:
        until = time.monotonic() + START
        while not self._listens():
            assert time.monotonic() < until, "chromedriver does not start"
            time.sleep(0.1)

    def _listens(self) -> bool:
        try:
            self._ask("GET", "/status")
        except OSError:
            return False
        return True
