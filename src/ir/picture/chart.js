"use strict";
(() => {
  const svg = document.querySelector("svg");
  const whole = svg.viewBox.baseVal;
  const [width, height] = [whole.width, whole.height];
  let frame;
  const show = () => svg.setAttribute("viewBox", `${frame.x} ${frame.y} ${frame.w} ${frame.h}`);
  const fit = () => {
    const scale = Math.min(svg.clientWidth / width, 1);
    const w = svg.clientWidth / scale;
    frame = { x: Math.min((width - w) / 2, 0), y: 0, w, h: svg.clientHeight / scale };
    show();
  };
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    const [u, v] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    // Some browsers count lines.
    const by = Math.exp(event.deltaY * (event.deltaMode === 1 ? 16 : 1) * 0.0015);
    frame.x += frame.w * u * (1 - by);
    frame.y += frame.h * v * (1 - by);
    frame.w *= by;
    frame.h *= by;
    show();
  }, { passive: false });
  let last = null;
  svg.addEventListener("pointerdown", (event) => {
    last = event;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    const scale = frame.w / svg.clientWidth;
    frame.x -= (event.clientX - last.clientX) * scale;
    frame.y -= (event.clientY - last.clientY) * scale;
    last = event;
    show();
  });
  svg.addEventListener("pointerup", () => {
    last = null;
  });
  svg.addEventListener("dblclick", fit);
  window.addEventListener("resize", fit);
  fit();
})();
