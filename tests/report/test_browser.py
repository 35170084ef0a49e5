"""The page in headless Chromium: charts are drawn, nothing is asked of the network, no error is logged, switches work.

Set ABLAX_SCREENSHOTS to a folder to keep screenshots: report.png (light), report-dark.png and report-phone.png. Those
in docs/ were made so.
"""

import base64
import hashlib
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
    result = Proxy()
    yield result
    result.close()


def visit(page: Path, proxy: Proxy, profile: Path, *flags: str, width: int = 1280, height: int = 3000) -> Seen:
    call = [CHROMIUM or "", *QUIET.split(), f"--user-data-dir={profile}", f"--window-size={width},{height}"]
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
    figures = len(re.findall(r"<figure ", page.read_text()))
    assert figures >= 13
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
const wait = setInterval(async () => {
  if (document.querySelectorAll("[data-drawn]").length < document.querySelectorAll("[data-chart]").length) return;
  clearInterval(wait);
  const section = document.querySelector("section.study");
  const find = (selector) => section.querySelector(selector);
  const later = (time) => new Promise((next) => setTimeout(next, time || 1500));
  const change = (element, value) => {
    if (element.type === "checkbox") element.checked = value; else element.value = value;
    element.dispatchEvent(new Event(element.type === "search" ? "input" : "change"));
  };
  const marks = () => section.querySelectorAll(".mark-symbol path[aria-label*='arm: h1']").length;
  const texts = (selector) => Array.from(section.querySelectorAll(selector), (one) => one.textContent).join();
  const rows = () => texts("table.arms tbody tr:not([hidden]) th");
  const path = () => find("#ID-train-loss .mark-line path:last-of-type").getAttribute("d");
  const ticks = () => texts("#ID-train-loss .role-axis-label text");
  const head = () => find("th[aria-sort]").textContent + find("th[aria-sort]").getAttribute("aria-sort");
  const cells = (table) => Array.from(table.rows, (row) => Array.from(row.cells, (one) => one.textContent).join("|"));
  const out = { before: marks(), path: [path()], ticks: [ticks()] };

  find("button[data-sort='1']").click();
  out.rising = rows() + " " + head();
  find("button[data-sort='1']").click();
  out.falling = rows() + " " + head();
  find(".switches button[data-arm='h1']").click();
  out.left = rows();
  await later();
  out.after = marks();
  find("[data-all=off]").click();
  out.none = rows();
  find("[data-all=on]").click();
  change(find("[data-filter]"), "H1 blocked");
  out.filtered = rows() + ", " + find("[data-count]").textContent;
  await later();
  out.alone = [marks() > 0, section.querySelectorAll(".mark-symbol path[aria-label*='arm: h2']").length];
  change(find("[data-filter]"), "");

  change(find("#ID-train-loss [data-smooth]"), "0");
  await later();
  out.path.push(path());
  change(find("#ID-train-loss [data-smooth]"), "0.2");
  await later();
  out.path.push(path());
  change(find("#ID-train-loss [data-log='x']"), true);
  await later();
  out.path.push(path());
  out.ticks.push(ticks());

  const diff = find(".diff");
  out.diff = cells(diff.querySelector("table")).concat(diff.querySelector("[data-told]").textContent);
  change(diff.querySelector("[data-arm-of='1']"), "h8");
  out.other = cells(diff.querySelector("table"));
  change(diff.querySelector("[data-equal]"), true);
  out.equal = cells(diff.querySelector("table")).length;

  change(find("[data-commands]"), "4");
  out.commands = find("[data-lines]").textContent;
  find("#ID-loss-by-length details.values").open = true;
  await later(200);
  out.values = cells(find("#ID-loss-by-length details.values table")).slice(0, 2);
  const style = (element) => getComputedStyle(element);
  const ink = () => style(document.body).color + style(find("#ID-train-loss .role-axis-label text")).fill;
  out.light = ink();
  change(document.getElementById("theme"), "dark");
  await later();
  out.dark = ink();
  document.body.dataset.outcome = JSON.stringify(out);
}, 100);
"""


def acting(page: Path, script: str, path: Path) -> Path:
    """Writes the page with a script of the test's in it, which its policy allows as it allows the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = page.read_text().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    path.write_text(ending(allowed, f"<script>{script}</script>"))
    return path


def test_what_a_reader_does_works_under_the_page_s_own_policy(page: Path, proxy: Proxy, tmp_path: Path) -> None:
    study = re.findall(r'<section class="study" id="([^"]+)"', page.read_text())[0]
    path = acting(page, ACT.replace("ID-", f"{study}-"), page.parent / "acting.html")
    seen = visit(path, proxy, tmp_path / "profile", "--dump-dom")
    path.unlink()
    result = re.search(r'data-outcome="([^"]*)"', seen.page)
    assert result, seen.console
    assert seen.console == [] and seen.requests == []
    out = json.loads(html.unescape(result.group(1)))
    assert out["rising"].startswith("h4,h8,h2,h1 val. loss") and out["rising"].endswith("ascending")
    assert out["falling"].startswith("h1,h2,h8,h4 val. loss") and out["falling"].endswith("descending")
    assert out["left"] == "h2,h8,h4" and out["before"] > 0 and out["after"] == 0
    assert out["none"] == "" and out["filtered"] == "h1, 1 of 4 arms" and out["alone"] == [True, 0]
    assert len(set(out["path"])) == 4, "no smoothing, more of it and a logarithmic axis each draw another line"
    assert out["ticks"][0] != out["ticks"][1] and "100k" in out["ticks"][1]
    assert out["diff"] == ["field|h4|h1", "model.num_heads|4|1", "model.head_dim|16|64", "2 of 9 settings differ"]
    assert out["other"] == ["field|h4|h8", "model.num_heads|4|8", "model.head_dim|16|8"] and out["equal"] == 10
    assert out["commands"].splitlines() == [
        "git checkout 0123456789abcdef0123456789abcdef01234567",
        'python train.py --config="$SWEEP"/runs/h2/seed1/config.json --workdir="$AGAIN"/runs/h2/seed1',
        'python -m eval.run --workdir="$AGAIN"/runs/h2/seed1 --evals=loss,throughput,memory,profile,heads',
    ]
    assert out["values"][0].startswith("arm|scaling|times the training length|tokens|")
    assert out["values"][1].startswith("h1|raw RoPE|1|128|")
    assert out["light"] == "rgb(27, 31, 36)rgb(87, 96, 106)" and out["dark"] == "rgb(230, 232, 235)rgb(169, 176, 184)"


HOSTILE = """
const wait = setInterval(() => {
  if (document.querySelectorAll("[data-chart]").length > document.querySelectorAll("[data-drawn]").length) return;
  clearInterval(wait);
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.querySelectorAll("[data-equal]")) one.click();
  setTimeout(() => {
    const count = (selector) => document.querySelectorAll(selector).length;
    const outcome = [count("main img:not(.still), main script, main b"), count(".values table")];
    document.body.dataset.outcome = outcome.concat(document.body.dataset.hit || "none").join(" ");
  }, 500);
}, 100);
"""


def test_hostile_names_errors_and_configs_stay_text_in_everything_scripts_write(proxy: Proxy, tmp_path: Path) -> None:
    evil = "</script><b>x</b><img src=x onerror=document.body.dataset.hit=1>"
    arms = {"</script><b>": synthetic.config(1, kind=evil), "plain": synthetic.config(2)}
    for name in arms:
        for seed in (0, 1):
            info = synthetic.run_json(seed, attention_kernel=evil, git_commit=f"$(touch {evil})")
            if seed == 1:
                info |= {"status": "failed", "error": evil}
            evals = {"loss": synthetic.loss_json(1.8, ("yarn",))}
            synthetic.write_run(tmp_path / "sweep" / "runs" / name / f"seed{seed}", info=info, evals=evals)
    study = synthetic.study_json(evil, arms, [0, 1], title=evil, question=evil)
    page = build(synthetic.write_sweep(tmp_path / "sweep", [study], name=evil, title=evil, file=f"x;{evil}"))
    seen = visit(acting(page, HOSTILE, tmp_path / "acting.html"), proxy, tmp_path / "profile", "--dump-dom")
    result = re.search(r'data-outcome="([^"]*)"', seen.page)
    assert result, seen.console
    count, tables, hit = result.group(1).split()
    assert count == "0" and int(tables) > 3 and hit == "none"
    assert seen.console == [] and seen.requests == []


AGAIN = """
const loads = Number(sessionStorage.loads || 0) + 1;
sessionStorage.loads = loads;
const filter = document.querySelector("[data-filter]");
if (loads === 1) {
  filter.value = "h4";
  filter.dispatchEvent(new Event("input"));
}
if (loads === 2) document.getElementById("pause").click();
const rows = Array.from(document.querySelectorAll("table.arms tbody tr:not([hidden]) th"), (one) => one.textContent);
document.body.dataset.outcome = `${loads} ${filter.value} ${rows.join()}`;
"""


def test_a_live_page_reads_itself_again_with_what_was_chosen_until_paused(proxy: Proxy, tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.8, 1.9], "h4": [1.7, 1.6]})
    page = acting(build(directory, reload=3), AGAIN, tmp_path / "acting.html")
    seen = visit(page, proxy, tmp_path / "profile", "--dump-dom")
    result = re.search(r'data-outcome="([^"]*)"', seen.page)
    assert result and result.group(1) == "2 h4 h4", "read again once, the filter kept, then paused for the other 27 s"
    assert seen.console == [] and seen.requests == []


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.parametrize(("name", "width", "flags"), [("light", 1280, ()), ("dark", 1280, (DARK,)), ("phone", 390, ())])
def test_it_looks_like_something_in_light_in_dark_and_on_a_phone(
    page: Path, proxy: Proxy, tmp_path: Path, name: str, width: int, flags: tuple[str, ...]
) -> None:
    keep = Path(os.environ.get("ABLAX_SCREENSHOTS") or tmp_path)
    picture = keep / ("report.png" if name == "light" else f"report-{name}.png")
    visit(page, proxy, tmp_path / "profile", f"--screenshot={picture}", *flags, width=width, height=1900)
    raw = picture.read_bytes()
    assert raw.startswith(b"\x89PNG") and int.from_bytes(raw[16:20], "big") == width and len(raw) > 100_000
