"""Take the screenshots of docs/web.md: python tools/take_screenshots.py, with Chromium installed."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
sys.path.insert(0, str(ROOT / "tests" / "web"))

from web_server import CHROMIUM_FLAGS, find_chromium, serving  # noqa: E402

CAT = (  # an outline with ears, eyes, whiskers and a mouth, as shares of the side
    [(0.5, 0.83), (0.4, 0.8), (0.28, 0.68), (0.25, 0.5), (0.22, 0.2), (0.38, 0.33)],
    [(0.38, 0.33), (0.62, 0.33), (0.78, 0.2), (0.75, 0.5), (0.72, 0.68), (0.6, 0.8), (0.5, 0.83)],
    [(0.4, 0.48), (0.41, 0.51)],
    [(0.6, 0.48), (0.59, 0.51)],
    [(0.46, 0.62), (0.54, 0.62), (0.5, 0.67), (0.46, 0.62)],
    [(0.5, 0.67), (0.45, 0.73)],
    [(0.5, 0.67), (0.55, 0.73)],
    [(0.38, 0.62), (0.12, 0.57)],
    [(0.38, 0.66), (0.12, 0.69)],
    [(0.62, 0.62), (0.88, 0.57)],
    [(0.62, 0.66), (0.88, 0.69)],
)


def draw(page: Page, strokes: tuple[list[tuple[float, float]], ...]) -> None:
    page.locator("#query-canvas").scroll_into_view_if_needed()
    box = page.locator("#query-canvas").bounding_box()
    assert box
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=6)
        page.mouse.up()
    page.mouse.move(5, 400)
    page.wait_for_selector("#nearest img")
    time.sleep(1.5)


def opened(page: Page, address: str) -> Page:
    """Open a task and wait for its map to come to rest."""
    page.goto(address)
    page.wait_for_selector(".confusion", state="attached")
    time.sleep(3)
    return page


def main() -> None:
    store = tempfile.mkdtemp()
    with serving(store) as (address, _), sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        wide = opened(chromium.new_page(viewport={"width": 1440, "height": 1060}), address)
        draw(wide, CAT)
        wide.screenshot(path=FIGURES / "web.png")
        task = wide.url.split("#")[1]
        for extra in httpx.get(f"{address}/v1/tasks/{task}").json()["classes"][3:]:
            httpx.delete(f"{address}/v1/tasks/{task}/classes/{extra['id']}")
        dark = chromium.new_page(viewport={"width": 1440, "height": 1060}, color_scheme="dark")
        draw(opened(dark, f"{address}/#{task}"), CAT)
        dark.screenshot(path=FIGURES / "web-dark.png")
        touch = {"has_touch": True, "is_mobile": True, "device_scale_factor": 2}
        phone = opened(chromium.new_page(viewport={"width": 390, "height": 844}, **touch), f"{address}/#{task}")
        draw(phone, CAT)
        phone.evaluate("document.getElementById('try').scrollIntoView()")
        phone.screenshot(path=FIGURES / "web-phone.png")
        chromium.close()
    shutil.rmtree(store)


if __name__ == "__main__":
    main()
