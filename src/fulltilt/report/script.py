"""The one script that a page carries: point at a moment, and every chart shows its values there.

The values are read off the drawn lines themselves, so the page carries its data once. Without the script the page loses
nothing but this.
"""

from __future__ import annotations

SCRIPT = r"""
(() => {
  const pairs = (plot, paths) => [...plot.querySelectorAll(paths)].flatMap(path => {
    return path.getAttribute("d").split("M").slice(1).flatMap(run => {
      const n = run.match(/[\d.]+/g).map(Number), out = [];
      for (let i = 0; i + 1 < n.length; i += 2) out.push([n[i], n[i + 1]]);
      return out;
    });
  }).sort((a, b) => a[0] - b[0]);
  const two = n => String(n).padStart(2, "0");
  const moment = (t, span) => {
    if (span < 120) return t.toFixed(1) + " s";
    const s = Math.round(t), m = Math.floor(s / 60);
    return span < 7200 ? m + ":" + two(s % 60) : Math.floor(m / 60) + ":" + two(m % 60) + ":" + two(s % 60);
  };
  const lineReader = (plot, value) => {
    const { low, high, unit, digits } = plot.dataset, colour = "." + value.dataset.colour, edges = new Map();
    const points = pairs(plot, ".line" + colour);
    const roomy = !plot.closest(".small");  // elsewhere a range would wrap the legend and move the chart
    for (const [x, y] of roomy ? pairs(plot, ".band" + colour) : []) {
      const [a, b] = edges.get(x) || [y, y];
      edges.set(x, [Math.min(a, y), Math.max(b, y)]);
    }
    const near = points.slice(1).map((p, i) => p[0] - points[i][0]).sort((a, b) => a - b)[points.length >> 1] || 1000;
    const show = y => (Number(low) + (1 - y / 100) * (high - low)).toFixed(digits);
    return part => {
      let a = 0, b = points.length - 1;
      while (a < b) { const mid = (a + b) >> 1; if (points[mid][0] < part * 1000) a = mid + 1; else b = mid; }
      const distance = i => Math.abs(points[i][0] - part * 1000);
      if (a > 0 && distance(a - 1) < distance(a)) a -= 1;
      if (!points.length || distance(a) > near * 1.5) return "no reading";
      const edge = edges.get(points[a][0]), range = edge ? " (" + show(edge[1]) + "\u2013" + show(edge[0]) + ")" : "";
      return show(points[a][1]) + range + " " + unit;
    };
  };
  const heatReader = plot => {
    const svg = plot.querySelector("svg"), box = svg.viewBox.baseVal, cells = new Map();
    svg.querySelectorAll("path").forEach(path => {
      const heat = Number(path.classList[1].slice(1));
      for (const run of path.getAttribute("d").split("M").slice(1)) {
        const [x, y, n] = run.match(/[\d.]+/g).map(Number);
        for (let i = 0; i < n; i += 1) cells.set((x + i) + ":" + Math.floor(y), heat);
      }
    });
    return (part, down) => {
      if (down === null) return "";
      const row = Math.min(Math.floor(down * box.height), box.height - 1);
      const heat = cells.get(Math.min(Math.floor(part * box.width), box.width - 1) + ":" + row);
      return "core " + row + ": " + (heat === undefined ? "no reading" : heat * 10 + "\u2013" + (heat + 1) * 10 + " %");
    };
  };
  const plots = [...document.querySelectorAll(".plot")].map(plot => {
    const shown = [...plot.closest("figure").querySelectorAll(".value")];
    const values = shown.map(value => ({ value, idle: value.textContent }));
    const lead = plot.closest("figure").querySelector(".lead"), leadIdle = lead ? lead.textContent : "";
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    return { plot, values, lead, leadIdle, cursor, start: Number(plot.dataset.start), end: Number(plot.dataset.end) };
  });
  const point = (part, active, down) => {
    for (const { plot, values, lead, cursor, start, end } of plots) {
      const now = moment(start + part * (end - start), end - start);
      cursor.style.left = part * 100 + "%";
      plot.append(cursor);
      if (plot === active) cursor.dataset.t = now; else delete cursor.dataset.t;
      if (lead) lead.textContent = "at " + now;
      for (const item of values) {
        const heat = "heat" in item.value.dataset;
        item.read = item.read || (heat ? heatReader(plot) : lineReader(plot, item.value));
        item.value.textContent = item.read(part, plot === active ? down : null);
      }
    }
  };
  const leave = () => {
    for (const { values, lead, leadIdle, cursor } of plots) {
      cursor.remove();
      if (lead) lead.textContent = leadIdle;
      for (const { value, idle } of values) value.textContent = idle;
    }
  };
  let frame = 0;
  for (const { plot } of plots) {
    plot.addEventListener("pointermove", event => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        const box = plot.getBoundingClientRect(), inside = n => Math.min(Math.max(n, 0), 1);
        point(inside((event.clientX - box.left) / box.width), plot, inside((event.clientY - box.top) / box.height));
      });
    });
    plot.addEventListener("pointerleave", () => { cancelAnimationFrame(frame); leave(); });
  }
})();
"""
