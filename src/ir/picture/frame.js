"use strict";
// A frame is the part of a drawing that is seen: x, y, w and h in the units of the drawing.
const framing = {
  // The frame of a whole drawing, or of its width alone, in the middle.
  fitted: (size, box, whole) => {
    const scale = Math.min(box.width / size.w, whole ? box.height / size.h : 1, 1);
    const w = box.width / scale;
    return { x: (size.w - w) / 2, y: 0, w, h: box.height / scale };
  },
  // Zooms at the pointer: from a few letters to twice the whole.
  zoomed: (frame, size, box, event) => {
    const [u, v] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    // Some browsers count lines.
    const asked = Math.exp(event.deltaY * (event.deltaMode === 1 ? 16 : 1) * 0.0015);
    const most = 2 * framing.fitted(size, box, true).w;
    const w = Math.min(Math.max(frame.w * asked, 40), Math.max(most, frame.w));
    const h = frame.h * w / frame.w;
    return { x: frame.x + (frame.w - w) * u, y: frame.y + (frame.h - h) * v, w, h };
  },
  // Moves with the pointer.
  moved: (frame, box, dx, dy) => {
    const scale = frame.w / box.width;
    return { ...frame, x: frame.x - dx * scale, y: frame.y - dy * scale };
  },
  // The same view in a window of another size.
  resized: (frame, box) => ({ ...frame, h: frame.w * box.height / box.width }),
};
