"""The page in headless Chromium: charts are drawn, nothing is asked of the network, no error is logged, switches work.

Set ABLAX_SCREENSHOTS to a folder to keep screenshots: light, dark and as wide as a phone.
"""

import html
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from report.build import build
from tests.report import synthetic

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
QUIET += " --disable-component-update --disable-sync --disable-default-apps --hide-scrollbars"


@dataclass
class Seen:
    """What one visit left: the page as it stood in the end, lines of the console, and what asked for the network."""

    page: str
    console: list[str]
    requests: list[str] = field(default_factory=list)


class Proxy:
    """Listens as the browser's only way to any network, and writes down the first line of whatever is asked."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    self.requests.append(connection.recv(4096).decode("latin-1").split("\r\n")[0])
                    connection.sendall(b"HTTP/1.1 404 None\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                except OSError:
                    continue

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = Proxy()
    yield found
    found.close()


def visit(page: Path, proxy: Proxy, profile: Path, *flags: str, width: int = 1280) -> Seen:
    call = [CHROMIUM or "", *QUIET.split(), f"--user-data-dir={profile}", f"--window-size={width},3000"]
    call += [f"--proxy-server=http://127.0.0.1:{proxy.port}", "--proxy-bypass-list=<-loopback>"]
    call += ["--virtual-time-budget=30000", "--enable-logging=stderr", *flags, page.as_uri()]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(done.stdout, console, [line for line in proxy.requests if "google" not in line])


def ending(text: str, slipped: str) -> str:
    """Puts an element at the page's end (the scripts in it hold the words of a page's end, too)."""
    place = text.rindex("</body>")
    return text[:place] + slipped + text[place:]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(synthetic.demo(tmp_path_factory.mktemp("browser") / "demo"))


def test_this_test_would_see_a_request_and_an_error(proxy: Proxy, tmp_path: Path) -> None:
    path = tmp_path / "control.html"
    path.write_text('<img src="http://example.org/seen.png"><script>console.error("heard")</script>')
    seen = visit(path, proxy, tmp_path / "profile", "--dump-dom")
    assert any("example.org/seen.png" in line for line in seen.requests)
    assert any("heard" in line for line in seen.console)


def test_every_chart_is_drawn_without_errors_or_requests(page: Path, proxy: Proxy, tmp_path: Path) -> None:
    seen = visit(page, proxy, tmp_path / "profile", "--dump-dom")
    figures = len(re.findall(r"<figure ", seen.page))
    assert figures == 13
    assert len(re.findall(r'data-drawn="yes"', seen.page)) == figures
    assert len(re.findall(r'<svg[^>]*class="marks"|<canvas[^>]*class="marks"', seen.page)) == figures
    assert seen.console == [] and seen.requests == []


def test_the_policy_stops_a_request_that_got_into_the_page(page: Path, proxy: Proxy, tmp_path: Path) -> None:
    path = tmp_path / "tampered.html"
    slipped = '<img src="http://example.org/out.png"><script>fetch("http://example.org/out")</script>'
    path.write_text(ending(page.read_text(), slipped))
    seen = visit(path, proxy, tmp_path / "profile", "--dump-dom")
    assert seen.requests == []
    assert sum("Content Security Policy" in line for line in seen.console) >= 2


ACT = """
<script>
const wait = setInterval(() => {
  if (document.querySelectorAll("[data-drawn]").length < 13) return;
  clearInterval(wait);
  const section = document.querySelector("section.study");
  const marks = () => section.querySelectorAll(".mark-symbol path[aria-label*='arm: h1']").length;
  const shown = "table.arms tbody tr:not([hidden]) th";
  const rows = () => Array.from(section.querySelectorAll(shown), (one) => one.textContent);
  const out = { before: marks() };
  section.querySelector("button[data-sort='1']").click();
  out.rising = rows().join();
  section.querySelector("button[data-sort='1']").click();
  out.falling = rows().join();
  section.querySelector(".switches button[data-arm='h1']").click();
  out.left = rows().join();
  setTimeout(() => {
    out.after = marks();
    document.body.dataset.outcome = JSON.stringify(out);
  }, 2000);
}, 100);
</script>
"""


def test_switching_an_arm_off_takes_it_out_of_charts_and_table_and_headings_sort(
    page: Path, proxy: Proxy, tmp_path: Path
) -> None:
    path = tmp_path / "acting.html"
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    path.write_text(ending(without, ACT))
    seen = visit(path, proxy, tmp_path / "profile", "--dump-dom")
    found = re.search(r'data-outcome="([^"]*)"', seen.page)
    assert found, seen.console
    outcome = json.loads(html.unescape(found.group(1)))
    assert outcome["rising"] == "h4,h8,h2,h1" and outcome["falling"] == "h1,h2,h8,h4"
    assert outcome["left"] == "h2,h8,h4"
    assert outcome["before"] > 0 and outcome["after"] == 0


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.parametrize(("name", "width", "flags"), [("light", 1280, ()), ("dark", 1280, (DARK,)), ("phone", 390, ())])
def test_it_looks_like_something_in_light_in_dark_and_on_a_phone(
    page: Path, proxy: Proxy, tmp_path: Path, name: str, width: int, flags: tuple[str, ...]
) -> None:
    keep = Path(os.environ.get("ABLAX_SCREENSHOTS") or tmp_path)
    picture = keep / f"report-{name}.png"
    visit(page, proxy, tmp_path / "profile", f"--screenshot={picture}", *flags, width=width)
    raw = picture.read_bytes()
    assert raw.startswith(b"\x89PNG") and int.from_bytes(raw[16:20], "big") == width and len(raw) > 100_000
