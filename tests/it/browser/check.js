"use strict";
// Uses a page as a person does and tells what is wrong, as JSON in the title.
window.addEventListener("load", () => {
  // Milliseconds from the beginning to the first drawing, layout included.
  document.documentElement.getBoundingClientRect();
  const drawn = performance.now();
  const id = (name) => document.getElementById(name);
  const faults = [];
  const fault = (view, what) => faults.length < 20 && faults.push(`${view}: ${what}`);
  // Glyphs may lean out of their line; numbers in the file have one digit.
  const SLACK = 1;
  const inside = (a, b) => a.x >= b.x - SLACK && a.x + a.width <= b.x + b.width + SLACK
    && a.y >= b.y - SLACK && a.y + a.height <= b.y + b.height + SLACK;
  const meet = (a, b) => a.x + SLACK < b.x + b.width && b.x + SLACK < a.x + a.width
    && a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height;
  const shown = () => document.querySelector(".view:not([hidden])");

  const look = () => {
    const view = shown();
    const name = `${view.dataset.level}, ${view.dataset.fold}`;
    const words = document.querySelector("h1").textContent;
    if (!words.endsWith(`by ${view.dataset.level.slice(0, -1)}`)) fault(name, `the heading is ${words}`);
    if (document.title !== words) fault(name, `the title is ${document.title}`);
    const whole = { x: 0, y: 0, width: Number(view.firstElementChild.dataset.w), height: Number(view.firstElementChild.dataset.h) };
    // Letters of less than a pixel have other widths: they are measured at their own size.
    view.firstElementChild.setAttribute("viewBox", `0 0 ${id("main").clientWidth} ${id("main").clientHeight}`);
    const boxes = [...view.querySelectorAll(".b")].map((b) => ({
      rect: b.querySelector("rect").getBBox(),
      texts: [...b.querySelectorAll("text")].map((t) => [t.textContent, t.getBBox()]),
    }));
    for (const { rect, texts } of boxes) {
      if (!inside(rect, whole)) fault(name, `the box of ${texts[0]} leaves the picture`);
      texts.forEach(([text, at], i) => {
        if (!inside(at, rect)) fault(name, `${text} leaves its box`);
        for (const [other, there] of texts.slice(i + 1)) if (meet(at, there)) fault(name, `${text} lies on ${other}`);
      });
    }
    for (const t of view.querySelectorAll("svg > text")) {
      if (!inside(t.getBBox(), whole)) fault(name, `${t.textContent} leaves the picture`);
      for (const { rect } of boxes) if (meet(t.getBBox(), rect)) fault(name, `${t.textContent} lies on a box`);
    }
    id("fit").click();
    const page = document.documentElement;
    if (page.scrollWidth > window.innerWidth || page.scrollHeight > window.innerHeight) fault(name, "the page overflows");
    const [main, drawn] = [id("main").getBoundingClientRect(), view.querySelector(".g").getBoundingClientRect()];
    if (drawn.left < main.left - 1 || drawn.right > main.right + 1) fault(name, "fitted, the picture is wider than its place");

    const box = view.querySelector(".b");
    box.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
    const title = box.querySelector("text").textContent;
    if (!id("side").querySelector("h2")) fault(name, `nothing is told of ${title}`);
    id("find").value = "f32";
    id("find").dispatchEvent(new Event("input"));
    const found = parseInt(id("found").textContent, 10);
    if (!(found > 0 && found === view.querySelectorAll(".hit").length)) fault(name, `found ${found}`);
    id("find").value = "";
    id("find").dispatchEvent(new Event("input"));
    return boxes.length;
  };

  const views = {};
  // Where a drawing is left out, the last one is behind the fifth.
  for (let turn = 0; turn < 5; turn += 1) {
    const { level, fold } = shown().dataset;
    views[`${level}, ${fold}`] = look();
    const next = turn % 2 === 0 ? id("fold") : id("level");
    if (!next.disabled) next.click();
  }
  const all = [...document.querySelectorAll(".view")].length;
  if (Object.keys(views).length !== all) faults.push(`buttons lead to ${Object.keys(views).length} of ${all} drawings`);
  document.title = JSON.stringify({ views, faults, shown: drawn });
});
