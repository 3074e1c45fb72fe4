"""A headless Chromium that tests drive through a pipe, by the DevTools protocol."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell", "chrome")
#: Seconds for a page to be drawn.
_LIMIT = 50.0
#: What a page may load: itself, and what is in it.
_OWN = ("file:", "data:", "blob:")


def find():
    """The path of a Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One browser with one page, without a network.

    Args:
        program: Path of the Chromium.
        home: An empty folder for what it writes.

    Attributes:
        complaints: Console errors, exceptions and requests of the page that is shown.
    """

    def __init__(self, program, home):
        self.complaints, self._number, self._rest = [], 0, b""
        ours, theirs = os.pipe(), os.pipe()
        # The browser reads commands from 3 and writes to 4: what we hold must not lie there.
        commands, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ours[0], theirs[1]))
        os.close(ours[0]), os.close(theirs[1])

        def place():
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self._log = open(Path(home, "log"), "wb")  # noqa: SIM115
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        self._browser = subprocess.Popen(
            [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={home}/profile"],
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(3, 4),
            preexec_fn=place,
        )
        os.close(commands), os.close(answers)
        self._write, self._read = ours[1], theirs[0]
        os.set_blocking(self._read, False)
        self._session = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._ask("Network.emulateNetworkConditions", offline=True, **nothing)

    def show(self, path, width, height=900):
        """Show a page of a file at a width, and wait until its script says that all is drawn."""
        self.complaints.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        self._ask("Page.navigate", url=Path(path).resolve().as_uri())
        end = time.monotonic() + _LIMIT
        while self.run("document.documentElement?.dataset.drawn") is None:
            assert time.monotonic() < end, f"{path} is not drawn after {_LIMIT:g} s"
            time.sleep(0.1)

    def run(self, expression):
        """The value of an expression of JavaScript in the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self):
        """End the browser."""
        self._session = None
        try:
            self._ask("Browser.close")
        finally:
            try:
                self._browser.wait(10)
            except subprocess.TimeoutExpired:
                self._browser.kill()
                self._browser.wait()
            os.close(self._write), os.close(self._read)
            self._log.close()

    def _ask(self, method, **parameters):
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        end, answer = time.monotonic() + _LIMIT, None
        while answer is None:
            for message in self._messages():
                if message.get("id") == self._number:
                    answer = message
                else:
                    self._hear(message)
            assert time.monotonic() < end, f"the browser does not answer {method}"
            time.sleep(0.01)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _messages(self):
        """What has come: events, and at last the answer."""
        try:
            self._rest += os.read(self._read, 1 << 20)
        except BlockingIOError:
            return []
        *whole, self._rest = self._rest.split(b"\0")
        return [json.loads(message) for message in whole]

    def _hear(self, message):
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(about["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.complaints.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(_OWN):
                self.complaints.append(f"requests {url}")
