"""The page in a real Chromium: teach by drawing, dropping, pasting and the webcam; nobody is shut out."""

import base64
import re

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from web_server import CHROMIUM_FLAGS, drawing, files, find_chromium, png, serving_here, short_folder

from tapnet.web.app import STATIC

WAIT = 20_000  # milliseconds, on a busy machine
expect.set_options(timeout=WAIT)
SCORE = re.compile(r"\d+%")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving_here(store=str(tmp_path_factory.mktemp("store"))) as address:
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
def blank(chromium, server, request):
    """A page that was not opened yet; in the end nothing went wrong on it, and it asked no other host.

    Only tests marked `requests_fail` may have requests that failed.
    """
    context = chromium.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["camera", "clipboard-read", "clipboard-write"], origin=server)
    context.set_default_timeout(WAIT)
    page, own, errors, strangers = context.new_page(), (server, "blob:", "data:"), [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(own) else strangers.append(asked.url))
    yield page
    context.close()
    if request.node.get_closest_marker("requests_fail"):
        errors = [error for error in errors if not error.startswith("Failed to load resource")]
    assert (errors, strangers) == ([], [])


@pytest.fixture
def page(blank, server):
    """The page as it opens at first."""
    blank.goto(server)
    expect(blank.locator(".class-card").first).to_be_visible()
    return blank


@pytest.fixture
def open_task(blank, server):
    """`open_task(Circles=[image, ...], ...)`: the page with a task of these classes."""
    tasks = []

    def run(**classes):
        task = httpx.post(f"{server}/v1/tasks", json={"name": "Untitled"}).json()["id"]
        tasks.append(f"{server}/v1/tasks/{task}")
        for name, images in classes.items():
            class_id = httpx.post(f"{tasks[-1]}/classes", json={"name": name}).json()["classes"][-1]["id"]
            if images:
                sent, address = files(*images), f"{tasks[-1]}/classes/{class_id}/examples"
                httpx.post(address, files=sent, timeout=60).raise_for_status()
        blank.goto(f"{server}/#{task}")
        expect(blank.locator(".class-card")).to_have_count(len(classes))
        expect(blank.locator(".thumb")).to_have_count(sum(map(len, classes.values())))
        return blank

    yield run
    blank.goto("about:blank")  # what it still loads would be missing
    for task in tasks:
        httpx.delete(task)


@pytest.fixture
def empty(open_task):
    """The page with a task of two classes without examples."""
    return open_task(**{"Class 1": [], "Class 2": []})


@pytest.fixture
def taught(open_task):
    """The page with a task of three circles and three crosses."""
    return open_task(**{name: [drawing(name, seed) for seed in range(3)] for name in ("circle", "cross")})


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
        expect(card(page, index).locator(".thumb")).to_have_count(seed + 1)
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


def rename(page, index, name):
    card(page, index).locator(".class-name").fill(name)
    card(page, index).locator(".class-name").press("Enter")


def test_two_classes_by_drawing_then_the_right_answer(empty):
    rename(empty, 0, "ring")
    teach_by_drawing(empty, 0, "circle")
    teach_by_drawing(empty, 1, "cross")
    for shape, label in (("cross", "Class 2"), ("circle", "ring")):
        draw(empty, empty.locator("#query-canvas"), shape, 7)
        expect(empty.locator("#answer")).to_have_text(label)
        empty.locator("#query-clear").click()
        expect(empty.locator("#answer")).to_have_text("…")


def test_drawing_like_no_class_is_unknown(taught):
    lines = np.full((120, 120), 255, np.uint8)
    lines[20:100:8, 30:90] = 0
    send(taught, "#query-card", "drop", [png(Image.fromarray(lines))])
    expect(taught.locator("#answer")).to_have_text("unknown")
    taught.get_by_label("Say “unknown” when the image looks like no class").uncheck()
    taught.get_by_label("Say “unknown” below").fill("0")
    expect(taught.locator("#answer")).to_have_text(re.compile("circle|cross"))


def test_nothing_is_unknown_before_every_class_has_two_examples(open_task):
    page = open_task(circle=[drawing("circle", 0)], cross=[drawing("cross", 0)])
    with page.expect_request(re.compile("/explain")) as asked:
        send(page, "#query-card", "drop", [drawing("cross", 7)])
    assert asked.value.url.endswith("?reject=0")
    expect(page.get_by_text("Starts once every class has two different examples.")).to_be_visible()


def test_first_sight_is_the_ready_example_with_its_accuracy(page):
    expect(page.locator(".class-card")).to_have_count(5)
    expect(page.locator("#score")).to_have_text(SCORE)
    expect(page.locator(".confusion tbody tr")).to_have_count(5)
    expect(page.locator("#answer-note")).to_have_text("The answer appears here.")
    page.locator("#query-surprise").click()
    expect(page.locator("#nearest img")).to_have_count(4)


def test_unknown_image_is_drawn_outside_and_the_text_says_why(page):
    expect(page.locator("#score")).to_have_text(SCORE)
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
def test_failed_map_keeps_what_was_there_and_can_be_tried_again(taught):
    expect(taught.locator("#score")).to_have_text(SCORE)
    taught.route("**/map", lambda route: route.abort())
    rename(taught, 0, "ring")
    expect(taught.locator("#map-retry")).to_be_visible()
    expect(taught.locator("#score")).to_have_text(SCORE)
    taught.unroute("**/map")
    taught.locator("#map-retry").click()
    expect(taught.locator("#legend")).to_contain_text("ring")
    expect(taught.locator("#map-retry")).to_be_hidden()


def test_map_follows_the_task_again_after_a_view_failed(taught):
    expect(taught.locator("#score")).to_have_text(SCORE)
    failed = taught.evaluate(
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
    script = "<img src=x onerror=document.title='owned'>"
    rename(taught, 0, script)
    expect(taught.locator("#legend")).to_contain_text(script)
    assert "owned" not in taught.title(), "a script in a name is shown as text"


@pytest.mark.requests_fail
def test_what_cannot_be_added_is_said(empty, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    card(empty, 0).locator("input[type=file]").set_input_files(broken)
    expect(empty.locator(".toast")).to_contain_text("Not added: broken.png")
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
    expect(empty.get_by_text("The folder is locked.")).to_be_visible()


def test_images_are_dropped_and_pasted_into_classes_and_into_the_query(empty):
    for index, shape in enumerate(("circle", "cross")):
        send(empty, f".class-card:nth-child({index + 1})", "drop", [drawing(shape, seed) for seed in range(3)])
        expect(card(empty, index).locator(".thumb")).to_have_count(3)
    send(empty, "#query-card", "drop", [drawing("cross", 30)])
    expect(empty.locator("#answer")).to_have_text("Class 2")
    card(empty, 0).get_by_role("button", name="Draw", exact=True).focus()
    send(empty, ".class-card:nth-child(1) .button", "paste", [drawing("circle", 40)])
    expect(card(empty, 0).locator(".thumb")).to_have_count(4)
    empty.locator("#query-clear").focus()
    send(empty, "#query-clear", "paste", [drawing("circle", 41)])
    expect(empty.locator("#answer")).to_have_text("Class 1")


def drop_paths(page, locator, *paths):
    """Drop files and folders from outside of the browser."""
    locator.scroll_into_view_if_needed()
    box, session = locator.bounding_box(), page.context.new_cdp_session(page)
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "data": data, **place})


def test_dropped_folders_become_classes_and_take_the_place_of_empty_ones(empty, tmp_path):
    for name, shape in (("rings", "circle"), ("crosses", "cross"), ("others", "circle")):
        (tmp_path / name).mkdir()
        for seed in range(2):
            (tmp_path / name / f"{seed}.png").write_bytes(drawing(shape, seed if name != "others" else 10 + seed))
    (tmp_path / "rings" / "notes.txt").write_text("not an image")
    drop_paths(empty, empty.locator("#add-class"), tmp_path / "rings", tmp_path / "crosses")
    for index, name in enumerate(("rings", "crosses")):
        expect(card(empty, index).locator(".class-name")).to_have_value(name)
        expect(card(empty, index).locator(".thumb")).to_have_count(2)
    expect(empty.locator(".class-card")).to_have_count(2)
    empty.locator("#folder-input").set_input_files(tmp_path / "others")  # the other way to give a folder
    expect(card(empty, 2).locator(".class-name")).to_have_value("others")


def test_webcam_gives_examples_while_its_button_is_held(empty):
    card(empty, 0).get_by_role("button", name="Webcam").click()
    hold = card(empty, 0).get_by_role("button", name="Hold to record")
    expect(hold).to_be_enabled()
    hold.hover()
    empty.mouse.down()
    expect(card(empty, 0).locator(".thumb").nth(1)).to_be_visible()
    empty.mouse.up()
    card(empty, 0).get_by_role("button", name="Done").click()


def test_undo_redo_and_delete(taught):
    thumbs = card(taught, 0).locator(".thumb")
    thumbs.first.hover()
    thumbs.locator("button").first.click()
    expect(thumbs).to_have_count(2)
    taught.locator("#undo").click()
    expect(thumbs).to_have_count(3)
    taught.locator("body").press("Control+Shift+Z")
    expect(thumbs).to_have_count(2)
    taught.get_by_role("button", name="Delete the class cross").click()
    expect(taught.locator(".class-card")).to_have_count(1)
    taught.locator("body").press("Control+Z")
    expect(card(taught, 1).locator(".thumb")).to_have_count(3)


def test_methods_can_be_compared(taught):
    expect(taught.locator("#score")).to_have_text(SCORE)
    taught.locator("#method").select_option("centroid")
    expect(taught.locator("#dim-box")).to_be_hidden()
    taught.locator("#method").select_option("tapnet")
    expect(taught.locator("#dim-box")).to_be_visible()
    taught.locator("#dim").fill("20")
    expect(taught.locator("#dim-value")).to_have_text(re.compile(r"^\d+$"))


def test_many_classes_that_were_stored_show_their_most_frequent_mistakes(open_task):
    page = open_task(**{f"kind {n}": [drawing("circle", 2 * n + seed) for seed in range(2)] for n in range(13)})
    expect(card(page, 12).locator(".class-name")).to_have_value("kind 12")
    expect(page.locator(".mistakes li").first).to_contain_text("taken for")


def test_task_file_is_downloaded_and_uploaded(taught, tmp_path):
    taught.locator(".use summary").click()
    with taught.expect_download() as download:
        taught.locator("#download-task").click()
    path = tmp_path / "shapes.task"
    download.value.save_as(path)
    taught.locator("#open").click()
    taught.locator("#task-file").set_input_files(path)
    expect(taught.locator("#task-name")).to_have_value("shapes")
    expect(taught.locator(".thumb")).to_have_count(6)
    httpx.delete(f"{taught.url.split('#')[0]}v1/tasks/{taught.url.split('#')[1]}")


def test_phone_shows_everything_without_scrolling_sideways(page):
    page.set_viewport_size({"width": 375, "height": 720})
    expect(page.locator("#score")).to_have_text(SCORE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in ("#query-canvas", "#map", "#add-class-button", "#undo"):
        page.locator(name).scroll_into_view_if_needed()
        assert page.locator(name).bounding_box()["width"] <= 375
    assert page.locator(".confusion-box").evaluate("box => box.scrollWidth <= box.clientWidth")  # all five classes
    button, thumbs = (page.locator(name).first.bounding_box() for name in (".thumb button", ".thumbs"))
    assert button["y"] >= thumbs["y"]  # beyond it, the list would cut it off


def press_until_focused(page, selector):
    for _ in range(100):
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
        expect(card(empty, index).locator(".thumb")).to_have_count(1)
    press_until_focused(empty, "#query-canvas")
    draw_by_keyboard(empty, *["ArrowDown"] * 7)
    expect(empty.locator("#answer")).to_have_text("Class 2")


def test_page_has_no_serious_accessibility_fault_in_light_and_dark(page):
    expect(page.locator(".confusion")).to_be_visible()
    page.locator("#query-surprise").click()
    expect(page.locator("#nearest img")).to_have_count(4)
    page.locator(".use summary").click()
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        faults = [
            fault for fault in Axe().run(page).response["violations"] if fault["impact"] in ("serious", "critical")
        ]
        assert [(fault["id"], [node["target"] for node in fault["nodes"]]) for fault in faults] == [], theme


def test_login_opens_the_page(chromium, tmp_path):
    with serving_here(store=str(tmp_path / "store"), token="correct horse") as address:
        page = chromium.new_page()
        page.goto(address)
        for token, title in (("wrong", "Log in · tapnet"), ("correct horse", "Five drawings of five things · tapnet")):
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            expect(page).to_have_title(title)
        page.close()


def test_image_to_try_stays_until_another_or_a_new_classifier_is_asked_for(page):
    for name in ("Surprise me", "New"):
        send(page, "#query-card", "drop", [drawing("circle", 3)])
        expect(page.locator("#query-shown")).to_be_visible()
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#query-shown")).to_be_hidden()
        expect(page.locator("#query-canvas")).to_be_visible()
        expect(page.get_by_role("button", name="Image", exact=True)).to_be_visible()
    expect(page.locator(".empty:visible")).to_have_count(2)
    expect(page.locator("#query-hint")).to_be_visible()


def test_ids_of_the_page_are_unique():
    ids = re.findall(r'\bid="([^"]+)"', (STATIC / "index.html").read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
