"""A real headless Chromium, driven over the DevTools protocol."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_WITHIN_S = 60.0
_MIDDLE = """(() => {{
  const element = document.querySelector({});
  element.scrollIntoView({{block: "center"}});
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}})()"""


class Tab:
    """One tab. What the page says on its console, and every address that it asks for, is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.said: list[str] = []
        self.asked: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=_WITHIN_S))
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.said.append(message["params"]["exceptionDetails"]["text"])
            case "Log.entryAdded":
                self.said.append(message["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])

    def look(self, width: int, height: int, scheme: str = "light", phone: bool = False) -> None:
        """Show pages in a window of this size; `scheme`: light or dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Go to a page and wait until it is complete."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + _WITHIN_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"{condition} did not come true; the page said {self.said}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """One key, as the keyboard would send it."""
        text = {"Enter": "\r"}.get(key)
        code = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        more = {"text": text} if text else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element."""
        x, y = self.evaluate(_MIDDLE.format(json.dumps(selector)))
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, file: Path, whole: bool = False) -> None:
        """A picture of what is shown; `whole`: of the whole page."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A Chromium with a fresh profile in `folder` and one tab; none of its processes outlives the block."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        told = folder / "DevToolsActivePort"
        deadline = time.monotonic() + _WITHIN_S
        while not (told.exists() and told.read_text().count("\n")):
            assert process.poll() is None, "Chromium ended as it started"
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        port = told.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            (target,) = [item for item in json.load(answer) if item["type"] == "page"]
        with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None, ping_interval=None) as connection:
            yield Tab(connection)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
