"use strict";
// Looks at a chart or a file of SVG, moves a chart that has a script, and tells what is wrong, as JSON in the title.
window.addEventListener("load", () => {
  // Milliseconds from the beginning to the first drawing, layout included.
  document.documentElement.getBoundingClientRect();
  const drawn = performance.now();
  const faults = [];
  const fault = (what) => faults.length < 20 && faults.push(what);
  const SLACK = 1;
  const svg = document.querySelector("svg");
  const moves = document.scripts.length > 1;
  const pixels = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  if (moves && pixels() < 0.74) fault("its letters are too small to read");
  const map = document.querySelector("#map");
  if (map) {
    const at = map.getBoundingClientRect();
    const before = svg.getAttribute("viewBox");
    const where = { clientX: at.left + at.width / 2, clientY: at.top + 1, buttons: 1 };
    map.dispatchEvent(new PointerEvent("pointerdown", where));
    if (svg.getAttribute("viewBox") === before) fault("the overview does not move it");
  }
  const whole = { width: Number(svg.getAttribute("width")), height: Number(svg.getAttribute("height")) };
  svg.setAttribute("viewBox", `0 0 ${svg.clientWidth || whole.width} ${svg.clientHeight || whole.height}`);
  // A part of a file may be moved as a whole.
  const place = (element) => {
    const [at, matrix, own] = [element.getBBox(), element.getCTM(), svg.getCTM()];
    const [dx, dy] = own ? [(matrix.e - own.e) / own.a, (matrix.f - own.f) / own.d] : [0, 0];
    return { x: at.x + dx, y: at.y + dy, width: at.width, height: at.height };
  };
  const meet = (a, b) => a.x + SLACK < b.x + b.width && b.x + SLACK < a.x + a.width
    && a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height;
  const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, place(t)]);
  texts.forEach(([text, at], i) => {
    if (at.x < -SLACK || at.y < -SLACK || at.x + at.width > whole.width + SLACK || at.y + at.height > whole.height + SLACK) {
      fault(`${text} leaves the picture`);
    }
    for (const [other, there] of texts.slice(i + 1)) if (meet(at, there)) fault(`${text} lies on ${other}`);
  });
  if (moves) {
    const shown = () => svg.getAttribute("viewBox");
    const before = shown();
    svg.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, clientX: 50, clientY: 50, cancelable: true }));
    if (shown() === before) fault("the wheel does not zoom");
    svg.dispatchEvent(new MouseEvent("dblclick"));
    const page = document.documentElement;
    if (page.scrollWidth > window.innerWidth || page.scrollHeight > window.innerHeight) fault("the page overflows");
  }
  document.title = JSON.stringify({ views: { chart: svg.querySelectorAll("rect, path, polyline, circle").length }, faults, shown: drawn });
});
