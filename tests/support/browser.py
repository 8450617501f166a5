"""A real Chromium, driven through the WebDriver protocol of its own driver (Debian: chromium, chromium-driver)."""

import base64
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"tab": "\ue004", "enter": "\ue007", "escape": "\ue00c", "space": " "}


class Browser:
    """One window of a browser."""

    def __init__(self, session: str) -> None:
        self._session, self._http = session, httpx.Client(timeout=60.0)

    def _call(self, method: str, path: str, **fields: Any) -> Any:
        answer = self._http.request(method, f"{self._session}{path}", json=None if method == "GET" else fields)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def open(self, url: str) -> None:
        self._call("POST", "/url", url=url)

    def size(self, width: int, height: int) -> None:
        self._devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, dark: bool) -> None:
        scheme = "dark" if dark else "light"
        self._devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _devtools(self, command: str, **params: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", cmd=command, params=params)

    def script(self, text: str, *args: Any) -> Any:
        return self._call("POST", "/execute/sync", script=text, args=list(args))

    def text(self, selector: str) -> str:
        return str(self.script("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector))

    def click(self, selector: str) -> None:
        element = self._call("POST", "/element", using="css selector", value=selector)[ELEMENT]
        self._call("POST", f"/element/{element}/click")

    def press(self, *keys: str) -> None:
        presses = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": presses}])

    def until(self, condition: str, *args: Any, seconds: float = 60.0) -> Any:
        """Wait until a JavaScript expression is true, and return it."""
        end = time.monotonic() + seconds
        while not (value := self.script(f"return ({condition})", *args)):
            assert time.monotonic() < end, f"{condition} is {value!r}: {self.text('body')[:2000]}"
            time.sleep(0.1)
        return value

    def picture(self, path: Path, *, whole: bool = True) -> None:
        size = self.script("return [innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 6000), "scale": 1}
        shot = self._devtools("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own in `folder`."""
    assert DRIVER is not None
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert driver.stdout is not None
    try:
        line = next(each for each in driver.stdout if "successfully on port" in each)
        server = f"http://127.0.0.1:{line.rpartition('on port ')[2].strip().rstrip('.')}"
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}",
        ]
        about = {"browserName": "chrome", "goog:chromeOptions": {"binary": CHROMIUM, "args": options}}
        answer = httpx.post(f"{server}/session", json={"capabilities": {"alwaysMatch": about}}, timeout=120.0).json()
        assert "sessionId" in answer["value"], answer["value"]
        session = f"{server}/session/{answer['value']['sessionId']}"
        try:
            yield Browser(session)
        finally:
            httpx.delete(session, timeout=60.0)
    finally:
        driver.terminate()
        driver.wait()
