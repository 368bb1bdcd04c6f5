"""Looks at pages in Chromium: the checks that the tests of pages and `benchmarks/page.py` share."""

import itertools
import shutil
from pathlib import Path

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS = (360, 1440)
SCHEMES = ("light", "dark")

OVERFLOWING = """
const wide = document.documentElement.clientWidth;
const found = [...document.body.querySelectorAll("*")].filter((each) => {
  const box = each.getBoundingClientRect();
  return box.width && (box.right > wide + 1 || box.left < -1) && !each.closest(".scroll, pre, .skip");
}).map((each) => each.tagName + "." + each.getAttribute("class"));
return [document.documentElement.scrollWidth - wide, found];
"""
CUT_OFF = """
return [...document.querySelectorAll("svg")].flatMap((svg) => {
  const whole = svg.viewBox.baseVal;
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBBox(), turned = text.hasAttribute("transform");
    return !turned && (box.x < -2 || box.x + box.width > whole.width + 1 || box.y + box.height > whole.height + 1);
  }).map((text) => text.textContent);
});
"""
FAINT = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (colour) => colour.slice(0, 3).map((part) => part / 255)
  .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const ground = (each) => {
  for (let at = each; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return rgba("Canvas");
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const each = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || ["SCRIPT", "STYLE"].includes(each.tagName)) continue;
  const style = getComputedStyle(each), own = each.closest("svg") ? style.fill : style.color;
  const [one, other] = [light(rgba(own)), light(ground(each))].sort((a, b) => b - a);
  const contrast = (one + 0.05) / (other + 0.05);
  if (contrast < 4.5) found.push([walker.currentNode.data.trim().slice(0, 40), contrast]);
}
return found;
"""
SMALL = """
return [...document.querySelectorAll("nav a, button")].map((each) => each.getBoundingClientRect().height)
  .filter((height) => height && height < 24);
"""
REACHABLE = """return document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]').length"""
AT = """
const at = document.activeElement, box = at.getBoundingClientRect();
window.reached ??= [];
window.reached.includes(at) || window.reached.push(at);
return [at.textContent, box.left >= 0 && box.top >= 0, getComputedStyle(at).outlineStyle];
"""
NAMED = {
    "image",
    "link",
    "region",
    "table",
    "group",
    "navigation",
    "heading",
    "button",
    "textbox",
    "combobox",
    "checkbox",
}


def started(folder):
    """A browser with its profile in a folder, without a window. Whoever starts it ends it: `quit`."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(DRIVER))


def show(driver, url, width=1440, scheme="light"):
    """Open a page in a window of a width, in a scheme of colours, or as it is printed (`print`)."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    printed = scheme == "print"
    features = [] if printed else [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print" if printed else "", "features": features})
    driver.get(Path(url).as_uri() if isinstance(url, Path) else url)


def logged(driver):
    """What the browser has said since it was last asked."""
    return [each["message"] for each in driver.get_log("browser") if "favicon" not in each["message"]]


def pressing_tab(driver):
    """What Tab reaches, press by press: (its text, whether it is in sight, its outline); and how many there should be.

    It presses as often as there are controls; two presses that reach the same one leave the second list shorter.
    """
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    wanted = driver.execute_script(REACHABLE)
    driver.execute_script("document.activeElement.blur(); window.reached = []")
    seen = []
    for _ in range(wanted):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        seen.append(tuple(driver.execute_script(AT)))
    return seen, driver.execute_script("return window.reached.length"), wanted


def tree(driver):
    """What the browser tells a screen reader, in order: (role, name, level of a heading)."""
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    of = {node["nodeId"]: node for node in nodes}
    inside = {child for node in nodes for child in node.get("childIds", [])}
    waiting, found = [node["nodeId"] for node in nodes if node["nodeId"] not in inside], []
    while waiting:
        node = of.get(waiting.pop(0))
        if node is None:
            continue
        waiting[:0] = node.get("childIds", [])
        if node.get("ignored"):
            continue
        level = next((each["value"]["value"] for each in node.get("properties", []) if each["name"] == "level"), None)
        found.append((node["role"]["value"], node.get("name", {}).get("value", ""), level))
    return found


def disordered(seen):
    """What is wrong in a tree with headings, landmarks and names, as sentences."""
    wrong = [f"{role} without a name" for role, name, _ in seen if role in NAMED and not name]
    levels = [level for role, _, level in seen if role == "heading"]
    if levels[:1] != [1] or levels.count(1) != 1:
        wrong.append(f"headings do not begin with the only one of level 1: {levels}")
    wrong += [f"a heading of level {b} under one of {a}" for a, b in itertools.pairwise(levels) if b > a + 1]
    roles = [role for role, _, _ in seen]
    if roles.count("main") != 1:
        wrong.append(f"{roles.count('main')} main landmarks")
    regions = [name for role, name, _ in seen if role in ("region", "navigation")]
    wrong += [f"two landmarks named {name}" for name in sorted({each for each in regions if regions.count(each) > 1})]
    return wrong
