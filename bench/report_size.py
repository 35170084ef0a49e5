"""python bench/report_size.py [--arms=125] [--seeds=4]: how long a large sweep's report takes to build and open.

Writes a made-up sweep (curves, losses by length and scaling, retrieval, speed, memory), builds its report in a separate
process, and opens the page in headless Chromium with an empty profile: seconds until the page is loaded, until the
first chart is drawn, and until all are.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from tests.report import synthetic  # noqa: E402  (needs the checkout on the path)

FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --enable-logging=stderr"
WATCH = """
const told = { loaded: null, first: null };
addEventListener("load", () => { told.loaded = performance.now(); });
const wait = setInterval(() => {
  const [drawn, all] = ["[data-drawn]", "[data-chart]"].map((one) => document.querySelectorAll(one).length);
  if (drawn > 0 && told.first === null) told.first = performance.now();
  if (drawn < all || told.loaded === null) return;
  clearInterval(wait);
  console.log("opened " + JSON.stringify(Object.assign(told, { all: performance.now(), charts: all })) + " end");
}, 20);
"""


def write(directory: Path, arms: int, seeds: int) -> None:
    """Writes a sweep of `arms` x `seeds` finished runs of 200 logged lines each."""
    names = {f"arm{index:03d}": 1.7 + 0.002 * (index % 40) for index in range(arms)}
    configs = {name: synthetic.config(2 ** (index % 4)) for index, name in enumerate(names)}
    for index, (name, value) in enumerate(names.items()):
        for seed in range(seeds):
            measured = value + 0.006 * seed + 0.001 * ((7 * index + seed) % 5)
            evals = {
                "loss": synthetic.loss_json(measured, ("linear", "yarn"), (1, 2, 4, 8)),
                "retrieval": synthetic.retrieval_json(1.0 - 0.004 * seed, ("linear", "yarn")),
                "throughput": synthetic.throughput_json(31000 - 50 * index, 950 - index),
                "memory": synthetic.memory_json((44 + index) << 20),
            }
            lines = synthetic.metrics(measured, seed, lines=200)
            run = directory / "runs" / name / f"seed{seed}"
            synthetic.write_run(run, info=synthetic.run_json(seed), lines=lines, evals=evals)
    study = synthetic.study_json("heads", configs, list(range(seeds)))
    synthetic.write_sweep(directory, [study | {"evals": ["loss", "retrieval", "throughput", "memory"]}])


def opening(page: Path, folder: Path) -> dict[str, float]:
    """Returns seconds from the start of navigation as measured by Chromium."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("no Chromium (Debian: apt-get install chromium)")
    digest = base64.b64encode(hashlib.sha256(WATCH.encode()).digest()).decode()
    text = page.read_text(encoding="utf-8").replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    place = text.index("<body>") + len("<body>")
    watched = page.parent / "watched.html"
    watched.write_text(f"{text[:place]}<script>{WATCH}</script>{text[place:]}", encoding="utf-8")
    call = [chromium, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900"]
    call += ["--remote-debugging-port=0", watched.as_uri()]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        try:
            result = next(
                filter(None, (re.search(r"opened (\{.*\}) end", line) for line in process.stderr or [])), None
            )
        finally:
            process.kill()
    watched.unlink()
    if result is None:
        raise SystemExit("the page did not open")
    return json.loads(result.group(1).replace('\\"', '"'))


def main() -> None:
    """Prints the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=125)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--keep", metavar="DIR", help="write the sweep there and leave it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(args.keep or folder) / "sweep"
        write(sweep, args.arms, args.seeds)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "report.build", str(sweep)], check=True, cwd=CHECKOUT)
        built = time.perf_counter() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        page = sweep / "report" / "index.html"
        seen = opening(page, Path(folder))
        runs = args.arms * args.seeds
        cpu, size = used.ru_utime + used.ru_stime, page.stat().st_size / 2**20
        print(f"{runs} runs: built in {built:.1f} s ({cpu:.1f} s of CPU), the page has {size:.1f} MiB")
        first, all_, loaded = (seen[name] / 1000 for name in ("first", "all", "loaded"))
        charts = f"first chart {first:.2f} s, all {seen['charts']} charts {all_:.2f} s"
        print(f"opened: loaded after {loaded:.2f} s, {charts}; load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
