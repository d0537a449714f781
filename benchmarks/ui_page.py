"""`bridge ui` in a real browser: how long until curves are drawn, whether zooming stalls, whether a run that trains shows by itself.

By hand; needs Chromium and `pip install playwright` (no browser of its own):

    python benchmarks/ui_page.py --bridge target/release/bridge --runs 50 --steps 100000 --shots /tmp/shots

Makes runs of that size in a folder that is deleted again (1.4 GB with these numbers), serves them, and prints one line of JSON. With `--shots`
it leaves pictures of the page there, light and dark, to be looked at. Exits with 1 if a figure is beyond its limit.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from playwright.sync_api import sync_playwright

OPEN_MS = 2000
FRAME_MS = 200
CONFIG = """name = "run-{r:02}"
[model]
num_layers = {layers}
hidden_size = 512
[optimizer]
lr = {lr:.2e}
[train]
train_iters = {steps}
global_batch_size = 64
[rng]
seed = {r}
"""


def line(r, i, steps, loss, noise, lr):
    shown = f"{loss:.6f}" if i % 9973 else '"NaN"'
    return (
        f'{{"kind":"train","iteration":{i},"loss":{shown},"learning_rate":{lr * (1 - i / steps * 0.9):.8e},"weight_decay":0.1,'
        f'"grad_norm":{abs(noise[i % 4096]) * 9 + 0.3:.6f},"loss_scale":1.0,"batch_size":64,"consumed_samples":{i * 64},"skipped":0,'
        f'"tokens_per_second":{312000 + noise[i % 4096] * 9e4:.4f},"seconds":{0.21 + noise[i * 3 % 4096] * 0.1:.6f},'
        f'"data_seconds":0.000273011,"run":"20260101-{r:06}-9a1ba62e"}}\n'
    )


def make_run(folder, r, steps):
    """A run whose loss falls, with noise, values that are not finite, and one spike of a single step."""
    os.makedirs(folder)
    rng = random.Random(r)
    lr, floor, rate = 10 ** rng.uniform(-4, -2.5), rng.uniform(2.2, 3.2), rng.uniform(0.25, 0.5)
    noise = [rng.gauss(0, 0.06) for _ in range(4096)]
    state = ["finished", "finished", "finished", "stopped", "failed"][r % 5]
    record = {
        "name": f"run-{r:02}", "state": state, "why": None, "started": "2026-01-01 00:00:00", "ended": None, "iteration": steps,
        "train_iters": steps, "seq_length": 1024, "world_size": 8, "config": CONFIG.format(r=r, lr=lr, steps=steps, layers=8 + r % 3 * 4),
    }
    with open(f"{folder}/run.json", "w") as file:
        json.dump(record, file)
    with open(f"{folder}/metrics.jsonl", "w") as file:
        for i in range(1, steps + 1):
            loss = floor + 8 * (i / 50 + 1) ** -rate + noise[(i * 7 + i // 4096) % 4096] + (5 if i == steps * 61 // 100 else 0)
            file.write(line(r, i, steps, loss, noise, lr))
            if i % 1000 == 0:
                run = f"20260101-{r:06}-9a1ba62e"
                file.write(f'{{"kind":"valid","iteration":{i},"loss":{loss + 0.1:.6f},"perplexity":{math.exp(loss):.4f},"run":"{run}"}}\n')
    return noise, lr


def frames(page, act, count):
    """The longest time between two frames while something is done often."""
    page.evaluate("""() => { window.longest = 0; window.watching = true; let last = performance.now();
        const tick = (now) => { window.longest = Math.max(window.longest, now - last); last = now; if (window.watching) requestAnimationFrame(tick); };
        requestAnimationFrame((now) => { last = now; requestAnimationFrame(tick); }); }""")
    for i in range(count):
        act(i)
    page.wait_for_timeout(300)
    return page.evaluate("() => { window.watching = false; return Math.round(window.longest); }")


def until(page, what, seconds):
    """Waits for what is true in the page. The page's own policy lets no text be run as a script, so it is asked from outside."""
    end = time.time() + seconds
    while not page.evaluate(what):
        if time.time() > end:
            raise TimeoutError(what)
        time.sleep(0.01)


def check(page, url, folder, arguments, found):
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url))
    page.goto(url)
    until(page, "document.documentElement.dataset.drawn", 60)
    found["open_ms"] = int(page.evaluate("document.documentElement.dataset.drawn"))
    found["first"] = page.evaluate("document.documentElement.dataset.shape")
    if arguments.shots:
        page.screenshot(path=f"{arguments.shots}/first.png")
    begun = time.time()
    whole = "document.documentElement.dataset.shape.endsWith(' 0') && !document.getElementById('status').textContent.includes('reading')"
    until(page, whole, 300)
    found["whole_s"] = round(time.time() - begun, 1)
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    found["zoom_frame_ms"] = frames(page, lambda i: (page.mouse.wheel(0, -100 if i % 40 < 25 else 100), page.wait_for_timeout(16)), 80)
    found["hover_frame_ms"] = frames(page, lambda i: page.mouse.move(box["x"] + 100 + 5 * i, box["y"] + 150), 60)
    page.locator("#reset").click()
    page.wait_for_timeout(500)
    # A run trains: its new steps and its loss show without a touch.
    path = f"{folder}/run-00/metrics.jsonl"
    noise = [0.01] * 4096
    begun = time.time()
    with open(path, "a") as file:
        file.write("".join(line(0, arguments.steps + i, arguments.steps, 1.2345, noise, 1e-3) for i in range(1, 51)))
    until(page, f"document.getElementById('runs').textContent.includes('{arguments.steps + 50}/')", 30)
    found["update_s"] = round(time.time() - begun, 2)
    until(page, f"state.charts[0].curves.train[state.runs[0].id].ends[1] === {arguments.steps + 50}", 30)
    found["curve_update_s"] = round(time.time() - begun, 2)
    if arguments.shots:
        for scheme in ["light", "dark"]:
            page.emulate_media(color_scheme=scheme)
            page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.6)
            page.wait_for_timeout(400)
            page.screenshot(path=f"{arguments.shots}/{scheme}.png")
        few(page, arguments.shots, box)
    found["problems"] = problems


def few(page, shots, box):
    """Three runs, a part of their steps, and the details of one."""
    page.locator("#none").click()
    for place in range(3):
        page.locator(".entry input").nth(place).check()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 80, steps=5)
    page.mouse.up()
    page.wait_for_timeout(600)
    page.screenshot(path=f"{shots}/few-dark.png")
    page.emulate_media(color_scheme="light")
    page.locator(".entry").nth(1).click()
    page.wait_for_timeout(600)
    page.screenshot(path=f"{shots}/few-light.png")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bridge", default="target/release/bridge")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--shots")
    arguments = parser.parse_args()
    if arguments.shots:
        os.makedirs(arguments.shots, exist_ok=True)
    found = {"runs": arguments.runs, "steps": arguments.steps}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for r in range(arguments.runs):
            make_run(f"{folder}/run-{r:02}", r, arguments.steps)
        begun = time.time()
        server = subprocess.Popen([arguments.bridge, "ui", folder, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(server.stdout.readline())["url"]
            found["start_ms"] = round((time.time() - begun) * 1000)
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
            check(browser.new_page(viewport={"width": 1440, "height": 900}), url, folder, arguments, found)
            browser.close()
            with open(f"/proc/{server.pid}/status") as status:
                rows = dict(row.split(":", 1) for row in status)
            found["memory_mib"] = int(rows["VmHWM"].split()[0]) // 1024
        finally:
            server.terminate()
    print(json.dumps(found))
    is_good = found["open_ms"] < OPEN_MS and max(found["zoom_frame_ms"], found["hover_frame_ms"]) < FRAME_MS and not found["problems"]
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
