"""A headless Chromium, driven through chromedriver's own protocol: JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ports import free_port

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


@contextmanager
def started() -> Iterator[Browser]:
    """Start a browser with one window."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    port = free_port()
    words = [DRIVER, f"--port={port}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        browser = Browser(f"http://127.0.0.1:{port}")
        yield browser
        browser.ask("DELETE", "")
    finally:
        process.terminate()
        process.wait(30)


class Browser:
    """A browser window, behind the driver that listens at an address."""

    def __init__(self, address: str) -> None:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        wanted = {"goog:chromeOptions": {"binary": CHROMIUM, "args": flags}}
        self._session, until = f"{address}/session", time.monotonic() + 60
        while True:
            try:
                found = self.ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
                break
            except OSError:  # the driver does not listen yet
                assert time.monotonic() < until, "chromedriver does not start"
                time.sleep(0.1)
        self._session += f"/{found['sessionId']}"

    def show(self, page: Path, *, scheme: str = "light", width: int = 1200) -> None:
        """Open a page in a window of some width in CSS pixels, as a reader who prefers light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.cdp("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        self.ask("POST", "/url", {"url": page.as_uri()})
        # What depends on the width is laid out in a frame that on a busy machine comes later.
        self.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function body in JavaScript returns; a promise is waited for."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Run a command of the browser's own protocol."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def ask(self, method: str, command: str, body: dict[str, Any] | None = None) -> Any:
        """Send the driver a command, and return its answer. Raises `RuntimeError`, or `OSError`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._session}{command}", data, method=method)  # noqa: S310 -- here
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:  # noqa: S310 -- to this machine
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["value"]["message"]) from error
