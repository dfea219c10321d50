"""A real browser for tests: chromium without a window, spoken to through a pipe in its DevTools protocol."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here to open pages in: apt-get install chromium"
)


class Browser:
    """One page in one browser. What the page puts on the console, or breaks, is in `console`."""

    def __init__(self, profile):
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip

        def ends():
            # The protocol's pipe has fixed numbers: 3 is read and 4 written by the browser.
            read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser))
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            command, preexec_fn=ends, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), ours_in
        self._buffer, self._number = b"", itertools.count(1)
        self.console, self.requests, self._events, self._session = [], [], [], None
        target = next(
            one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page"
        )["targetId"]  # fmt: skip
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """Call a method of the protocol and wait for its result."""
        number = next(self._number)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has gone away"
            self._buffer += read
        one, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(one)
        method = message.get("method", "")
        if method in (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        ):
            self.console.append(message["params"])
        if method == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if method:
            self._events.append(method)
        return message

    def open(self, path, width=1280, height=900, dark=False):
        """Open a file; the seconds until it was loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        began = time.perf_counter()
        self.send("Page.navigate", url=path.absolute().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.perf_counter() - began

    def run(self, script):
        """The value of a JavaScript expression (of a promise, what it gives)."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key, code=0):
        """Press a key on the keyboard."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def shot(self, path, whole=True):
        """A picture of the page."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        """End the browser."""
        try:
            self._session = None
            self._out.write(json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            self._process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._out.close()
        os.close(self._in)


def fits(browser, page, width, dark):
    """Open a page and see that nothing on it is cut off and that its figures follow the scheme; how many there are."""
    import numpy as np
    from matplotlib.image import imread

    browser.open(page, width, dark=dark)
    assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    # Nothing scrolls inside the page, and nothing reaches beyond its edge.
    parts = "[...document.querySelectorAll('.panel, .wide, pre')]"
    assert browser.run(f"{parts}.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.className)") == []
    beyond = "getBoundingClientRect().right > innerWidth"
    assert browser.run(f"[...document.querySelectorAll('main *:not(thead *)')].filter(one => one.{beyond}).length") == 0
    # On paper as on a dark page: the ground of a figure is the page's, and its ink can be read on it.
    shot = page.with_suffix(f".{width}.{'dark' if dark else 'light'}.png")
    browser.shot(shot)
    image = imread(shot)[..., :3].mean(axis=2)
    box = "JSON.stringify([...document.querySelectorAll('.panel img')].map(one => one.getBoundingClientRect()))"
    drawn = json.loads(browser.run(box))
    for one in drawn:
        top, left = round(one["y"]), round(one["x"])
        part = image[top : top + int(one["height"]), left : left + int(one["width"])]
        ground = np.median(np.concatenate([part[:3].ravel(), part[-3:].ravel(), part[:, :3].ravel()]))
        ink = np.quantile(np.abs(part - ground), 0.999)
        assert (ground < 0.2) == dark and (ground > 0.95) != dark and ink > 0.5, (ground, ink, one)
    return len(drawn)
