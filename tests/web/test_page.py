"""The page in a real Chromium: teach by drawing, dropping, pasting and the webcam; nobody is shut out."""

import base64
import re

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from web_server import CHROMIUM_FLAGS, drawing, files, find_chromium, png, serving, short_folder

from tapnet.web.app import STATIC

WAIT = 20_000  # milliseconds, on a busy machine
HUNDRED_STEPS = 100


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def chromium():
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("TMPDIR", folder)
        with sync_playwright() as driver:
            running = driver.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
            yield running
            running.close()


@pytest.fixture
def page(chromium, server, request):
    """A page that was just opened; in the end nothing went wrong on it, and it asked no other host.

    Only tests marked `requests_fail` may have requests that failed.
    """
    context = chromium.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["camera", "clipboard-read", "clipboard-write"], origin=server)
    opened = context.new_page()
    opened.set_default_timeout(WAIT)
    errors, strangers = [], []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "request",
        lambda request: None if request.url.startswith((server, "blob:", "data:")) else strangers.append(request.url),
    )
    opened.goto(server)
    yield opened
    context.close()
    if request.node.get_closest_marker("requests_fail"):
        errors = [error for error in errors if not error.startswith("Failed to load resource")]
    assert errors == []
    assert strangers == []


@pytest.fixture
def empty(page):
    """A page with a new task of two classes without examples."""
    expect(page.locator(".class-card").first).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.locator(".class-card")).to_have_count(2, timeout=WAIT)
    expect(page.locator(".empty:visible")).to_have_count(2, timeout=WAIT)
    yield page
    httpx.delete(f"{page.url.split('#')[0]}v1/tasks/{page.url.split('#')[1]}")


def draw(page, canvas, shape, seed):
    """Draw a circle or a cross with the mouse."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    generator = np.random.default_rng(seed)
    side, (dx, dy) = box["width"] * generator.uniform(0.26, 0.36), generator.uniform(-8, 8, 2)
    x, y = box["x"] + box["width"] / 2 + dx, box["y"] + box["height"] / 2 + dy
    if shape == "circle":
        strokes = [[(x + side * np.cos(a), y + side * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 24)]]
    else:
        strokes = [[(x - side, y - side), (x + side, y + side)], [(x - side, y + side), (x + side, y - side)]]
    for first, *others in strokes:
        page.mouse.move(*first)
        page.mouse.down()
        for point in others:
            page.mouse.move(*point)
        page.mouse.up()


def card(page, index):
    return page.locator(".class-card").nth(index)


def teach_by_drawing(page, index, shape, count=3):
    card(page, index).get_by_role("button", name="Draw", exact=True).click()
    for seed in range(count):
        draw(page, card(page, index).locator("canvas"), shape, seed)
        card(page, index).get_by_role("button", name="Add drawing").click()
        expect(card(page, index).locator(".thumb")).to_have_count(seed + 1, timeout=WAIT)
    card(page, index).get_by_role("button", name="Done").click()


def send(page, selector, event, contents, name="image.png"):
    """Drop or paste files, as a browser would."""
    encoded = [base64.b64encode(content).decode() for content in contents]
    page.evaluate(
        """([selector, event, encoded, name]) => {
            const transfer = new DataTransfer();
            for (const [index, text] of encoded.entries()) {
                const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], `${index} ${name}`, { type: "image/png" }));
            }
            const target = document.querySelector(selector);
            const options = { bubbles: true, cancelable: true };
            target.dispatchEvent(event === "paste"
                ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
                : new DragEvent("drop", { ...options, dataTransfer: transfer }));
        }""",
        [selector, event, encoded, name],
    )


def teach_by_dropping(page, count=3):
    for index, shape in enumerate(("circle", "cross")):
        send(page, f".class-card:nth-child({index + 1})", "drop", [drawing(shape, seed) for seed in range(count)])
        expect(card(page, index).locator(".thumb")).to_have_count(count, timeout=WAIT)


def name_classes(page, *names):
    for index, name in enumerate(names):
        card(page, index).locator(".class-name").fill(name)
        card(page, index).locator(".class-name").press("Enter")
    expect(page.locator(".legend li, .class-card")).not_to_have_count(0)


def test_two_classes_by_drawing_then_the_right_answer(empty):
    name_classes(empty, "ring", "cross")
    teach_by_drawing(empty, 0, "circle")
    teach_by_drawing(empty, 1, "cross")
    for shape, label in (("cross", "cross"), ("circle", "ring")):
        draw(empty, empty.locator("#query-canvas"), shape, 7)
        expect(empty.locator("#answer")).to_have_text(label, timeout=WAIT)
        empty.locator("#query-clear").click()
        expect(empty.locator("#answer")).to_have_text("…", timeout=WAIT)


def test_drawing_like_no_class_is_unknown(empty):
    teach_by_dropping(empty)
    lines = np.full((120, 120), 255, np.uint8)
    lines[20:100:8, 30:90] = 0
    send(empty, "#query-card", "drop", [png(Image.fromarray(lines))])
    expect(empty.locator("#answer")).to_have_text("unknown", timeout=WAIT)
    empty.get_by_label("Say “unknown” when the image looks like no class").uncheck()
    empty.get_by_label("Say “unknown” below").fill("0")
    expect(empty.locator("#answer")).to_have_text(re.compile("Class"), timeout=WAIT)


def test_nothing_is_unknown_before_every_class_has_two_examples(empty):
    teach_by_dropping(empty, count=1)
    with empty.expect_request(re.compile("/explain")) as asked:
        send(empty, "#query-card", "drop", [drawing("cross", 7)])
    assert asked.value.url.endswith("?reject=0")
    expect(empty.get_by_text("Starts once every class has two different examples.")).to_be_visible()


def test_unknown_image_is_drawn_outside_and_the_text_says_why(page):
    expect(page.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    text, outside = page.evaluate(
        """async () => {
            const { showPicture, view } = await import("/static/why.js");
            const { map } = await import("/static/task.js");
            showPicture({ picture: { ...map.picture, query: map.picture.centers[0] }, rejected: true });
            const { clientHeight } = view.canvas;
            return [document.getElementById("map-text").textContent, view.goals().get("query")[1] > clientHeight - 44];
        }"""
    )
    assert "looks like no class" in text
    assert outside


@pytest.mark.requests_fail
def test_failed_map_keeps_what_was_there_and_can_be_tried_again(empty):
    teach_by_dropping(empty)
    expect(empty.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    empty.route("**/map", lambda route: route.abort())
    name_classes(empty, "ring")
    expect(empty.locator("#map-retry")).to_be_visible(timeout=WAIT)
    expect(empty.locator("#score")).to_have_text(re.compile(r"\d+%"))
    empty.unroute("**/map")
    empty.locator("#map-retry").click()
    expect(empty.locator("#legend")).to_contain_text("ring", timeout=WAIT)
    expect(empty.locator("#map-retry")).to_be_hidden()


@pytest.mark.requests_fail
def test_image_that_cannot_be_added_is_named(empty, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    card(empty, 0).locator("input[type=file]").set_input_files(broken)
    expect(empty.locator(".toast")).to_contain_text("Not added: broken.png", timeout=WAIT)


def test_first_sight_is_the_ready_example_with_its_accuracy(page):
    expect(page.locator(".class-card")).to_have_count(5, timeout=WAIT)
    expect(page.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    expect(page.locator(".confusion tbody tr")).to_have_count(5)
    expect(page.locator("#answer-note")).to_have_text("The answer appears here.", timeout=WAIT)
    page.locator("#query-surprise").click()
    expect(page.locator("#nearest img")).to_have_count(4, timeout=WAIT)


def test_images_are_dropped_and_pasted_into_classes_and_into_the_query(empty):
    teach_by_dropping(empty)
    send(empty, "#query-card", "drop", [drawing("cross", 30)])
    expect(empty.locator("#answer")).to_have_text("Class 2", timeout=WAIT)
    card(empty, 0).get_by_role("button", name="Draw", exact=True).focus()
    send(empty, ".class-card:nth-child(1) .button", "paste", [drawing("circle", 40)])
    expect(card(empty, 0).locator(".thumb")).to_have_count(4, timeout=WAIT)
    empty.locator("#query-clear").focus()
    send(empty, "#query-clear", "paste", [drawing("circle", 41)])
    expect(empty.locator("#answer")).to_have_text("Class 1", timeout=WAIT)


def drop_paths(page, locator, *paths):
    """Drop files and folders from outside of the browser."""
    locator.scroll_into_view_if_needed()
    box, session = locator.bounding_box(), page.context.new_cdp_session(page)
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "data": data, **place})


def test_dropped_folders_become_classes_and_take_the_place_of_empty_ones(empty, tmp_path):
    for name, shape in (("rings", "circle"), ("crosses", "cross")):
        (tmp_path / name).mkdir()
        for seed in range(2):
            (tmp_path / name / f"{seed}.png").write_bytes(drawing(shape, seed))
    (tmp_path / "rings" / "notes.txt").write_text("not an image")
    drop_paths(empty, empty.locator("#add-class"), tmp_path / "rings", tmp_path / "crosses")
    for index, name in enumerate(("rings", "crosses")):
        expect(card(empty, index).locator(".class-name")).to_have_value(name, timeout=WAIT)
        expect(card(empty, index).locator(".thumb")).to_have_count(2, timeout=WAIT)
    expect(empty.locator(".class-card")).to_have_count(2, timeout=WAIT)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "0.png").write_bytes(drawing("circle", 10))
    empty.locator("#folder-input").set_input_files(tmp_path / "others")  # the other way to give a folder
    expect(card(empty, 2).locator(".class-name")).to_have_value("others", timeout=WAIT)


def test_webcam_gives_examples_while_its_button_is_held(empty):
    card(empty, 0).get_by_role("button", name="Webcam").click()
    hold = card(empty, 0).get_by_role("button", name="Hold to record")
    expect(hold).to_be_enabled(timeout=WAIT)
    hold.hover()
    empty.mouse.down()
    expect(card(empty, 0).locator(".thumb").nth(1)).to_be_visible(timeout=WAIT)
    empty.mouse.up()
    card(empty, 0).get_by_role("button", name="Done").click()


def test_undo_redo_and_delete(empty):
    teach_by_dropping(empty)
    card(empty, 0).locator(".thumb").first.hover()
    card(empty, 0).locator(".thumb button").first.click()
    expect(card(empty, 0).locator(".thumb")).to_have_count(2, timeout=WAIT)
    empty.locator("#undo").click()
    expect(card(empty, 0).locator(".thumb")).to_have_count(3, timeout=WAIT)
    empty.locator("body").press("Control+Shift+Z")
    expect(card(empty, 0).locator(".thumb")).to_have_count(2, timeout=WAIT)
    empty.get_by_role("button", name="Delete the class Class 2").click()
    expect(empty.locator(".class-card")).to_have_count(1, timeout=WAIT)
    empty.locator("body").press("Control+Z")
    expect(card(empty, 1).locator(".thumb")).to_have_count(3, timeout=WAIT)


def test_methods_can_be_compared(empty):
    teach_by_dropping(empty)
    expect(empty.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    empty.locator("#method").select_option("centroid")
    expect(empty.locator("#dim-box")).to_be_hidden(timeout=WAIT)
    empty.locator("#method").select_option("tapnet")
    expect(empty.locator("#dim-box")).to_be_visible(timeout=WAIT)
    empty.locator("#dim").fill("20")
    expect(empty.locator("#dim-value")).to_have_text(re.compile(r"^\d+$"), timeout=WAIT)


def test_many_classes_show_their_most_frequent_mistakes_also_after_a_reload(empty):
    base = f"{empty.url.split('#')[0]}v1/tasks/{empty.url.split('#')[1]}"
    for number in range(13):
        made = httpx.post(f"{base}/classes", json={"name": f"kind {number}"}, timeout=60).json()["classes"][-1]["id"]
        sent = files(*(drawing("circle", 10 * number + seed) for seed in range(2)))
        httpx.post(f"{base}/classes/{made}/examples", files=sent, timeout=60).raise_for_status()
    empty.reload()
    expect(card(empty, 14).locator(".class-name")).to_have_value("kind 12", timeout=WAIT)
    expect(empty.locator(".thumb")).to_have_count(26, timeout=WAIT)
    expect(empty.locator(".mistakes li").first).to_contain_text("taken for", timeout=WAIT)


def test_task_file_is_downloaded_and_uploaded(empty, tmp_path):
    teach_by_dropping(empty)
    empty.locator(".use summary").click()
    with empty.expect_download() as download:
        empty.locator("#download-task").click()
    path = tmp_path / "shapes.task"
    download.value.save_as(path)
    empty.locator("#open").click()
    empty.locator("#task-file").set_input_files(path)
    expect(empty.locator("#task-name")).to_have_value("shapes", timeout=WAIT)
    expect(empty.locator(".thumb")).to_have_count(6, timeout=WAIT)
    httpx.delete(f"{empty.url.split('#')[0]}v1/tasks/{empty.url.split('#')[1]}")


def test_script_in_a_name_is_shown_as_text(empty):
    name = "<img src=x onerror=document.title='owned'>"
    name_classes(empty, name)
    teach_by_dropping(empty)
    expect(empty.locator("#legend")).to_contain_text(name, timeout=WAIT)
    assert "owned" not in empty.title()


def test_map_follows_the_task_again_after_a_view_failed(empty):
    teach_by_dropping(empty)
    expect(empty.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    failed = empty.evaluate(
        """async () => {
            const { changed, subscribe } = await import("/static/task.js");
            let failing = true;
            subscribe("map", () => { if (failing) throw new Error("a view failed"); });
            const message = await changed().then(() => "", (error) => error.message);
            failing = false;
            return message;
        }"""
    )
    assert failed == "a view failed"
    name_classes(empty, "ring")
    expect(empty.locator("#legend")).to_contain_text("ring", timeout=WAIT)


def test_folder_that_cannot_be_read_is_said(empty):
    empty.evaluate(
        """() => {
            const reader = { readEntries: (done, fail) => fail({ message: "The folder is locked." }) };
            const folder = { isDirectory: true, name: "rings", createReader: () => reader };
            const event = new Event("drop", { cancelable: true });
            event.dataTransfer = { items: [{ kind: "file", webkitGetAsEntry: () => folder }], files: [] };
            console.error = () => {};
            document.getElementById("add-class").dispatchEvent(event);
        }"""
    )
    expect(empty.locator(".toast")).to_have_text("The folder is locked.", timeout=WAIT)


def test_phone_shows_everything_without_scrolling_sideways(page):
    page.set_viewport_size({"width": 375, "height": 720})
    expect(page.locator("#score")).to_have_text(re.compile(r"\d+%"), timeout=WAIT)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in ("#query-canvas", "#map", "#add-class-button", "#undo"):
        page.locator(name).scroll_into_view_if_needed()
        assert page.locator(name).bounding_box()["width"] <= 375
    assert page.locator(".confusion-box").evaluate("box => box.scrollWidth <= box.clientWidth")  # all five classes
    button, thumbs = (page.locator(name).first.bounding_box() for name in (".thumb button", ".thumbs"))
    assert button["y"] >= thumbs["y"]  # beyond it, the list would cut it off


def press_until_focused(page, selector):
    for _ in range(HUNDRED_STEPS):
        if page.evaluate("selector => document.activeElement?.matches(selector) ?? false", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never reaches {selector}.")


def draw_by_keyboard(page, *keys):
    page.keyboard.down("Space")
    for key in keys:
        page.keyboard.press(key)
    page.keyboard.up("Space")


def test_keyboard_alone_teaches_and_asks(empty):
    for index, key in enumerate(("ArrowRight", "ArrowDown")):
        press_until_focused(empty, f".class-card:nth-child({index + 1}) .row .button")
        empty.keyboard.press("Enter")
        expect(card(empty, index).locator("canvas")).to_be_focused()
        draw_by_keyboard(empty, *[key] * 6)
        empty.keyboard.press("Enter")
        expect(card(empty, index).locator(".thumb")).to_have_count(1, timeout=WAIT)
    press_until_focused(empty, "#query-canvas")
    draw_by_keyboard(empty, *["ArrowDown"] * 7)
    expect(empty.locator("#answer")).to_have_text("Class 2", timeout=WAIT)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_has_no_serious_accessibility_fault(page, theme):
    expect(page.locator(".confusion")).to_be_visible(timeout=WAIT)
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    page.locator("#query-surprise").click()
    expect(page.locator("#nearest img")).to_have_count(4, timeout=WAIT)
    page.locator(".use summary").click()
    found = Axe().run(page).response["violations"]
    serious = [
        (each["id"], [node["target"] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_login_opens_the_page(chromium, tmp_path):
    with serving(tmp_path / "store", "--token", "correct horse") as (address, _):
        page = chromium.new_page()
        page.goto(address)
        for token, title in (("wrong", "Log in · tapnet"), ("correct horse", "Five drawings of five things · tapnet")):
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            expect(page).to_have_title(title, timeout=WAIT)
        page.close()


def test_image_to_try_is_shown_and_its_tab_stays(page):
    expect(page.locator(".class-card").first).to_be_visible(timeout=WAIT)
    send(page, "#query-card", "drop", [drawing("circle", 3)])
    expect(page.locator("#query-shown")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="Surprise me").click()
    expect(page.locator("#query-canvas")).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Image", exact=True)).to_be_visible()


def test_new_classifier_has_nothing_to_try_yet(page):
    expect(page.locator(".class-card").first).to_be_visible(timeout=WAIT)
    send(page, "#query-card", "drop", [drawing("circle", 3)])
    expect(page.locator("#query-shown")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.locator(".empty:visible")).to_have_count(2, timeout=WAIT)
    expect(page.locator("#query-shown")).to_be_hidden()
    expect(page.locator("#query-hint")).to_be_visible()


def test_ids_of_the_page_are_unique():
    ids = re.findall(r'\bid="([^"]+)"', (STATIC / "index.html").read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
