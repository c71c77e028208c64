"""The diagnosis page's own script: point at a step of the timeline, drag to zoom, one button back to all.

Without it the page loses nothing but this.
"""

from __future__ import annotations

STEPS_SCRIPT = r"""
(() => {
  for (const plot of document.querySelectorAll(".steps")) {
    const figure = plot.closest("figure"), svg = plot.querySelector("svg"), lead = figure.querySelector(".lead");
    const pointed = figure.querySelector(".pointed"), reset = figure.querySelector(".reset");
    const [first, last] = plot.querySelectorAll(".ends span"), idle = lead.textContent;
    const names = plot.dataset.phases.split(",");
    const rows = plot.dataset.steps.split(";").map(row => row.split(",").map(Number));
    const width = 1000 / rows.length, cursor = document.createElement("div"), brush = document.createElement("div");
    cursor.className = "cursor"; brush.className = "brush";
    let from = 0, until = rows.length, start = null;
    const part = event => {
      const box = plot.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    };
    const column = at => Math.min(from + Math.floor(at * (until - from)), until - 1);
    const look = (a, b) => {
      from = a; until = b;
      svg.setAttribute("viewBox", [a * width, 0, (b - a) * width, 100].join(" "));
      first.textContent = rows[a][0]; last.textContent = rows[b - 1][0];
      reset.hidden = a === 0 && b === rows.length;
    };
    const show = at => {
      const index = column(at), row = rows[index], total = row.slice(1).reduce((a, b) => a + b, 0);
      const ms = n => n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
      lead.textContent = "step " + row[0] + ": " + ms(total) + " ms";
      const parts = names.map((name, i) => [name, row[i + 1]]).filter(item => item[1] > total * 0.005);
      parts.sort((a, b) => b[1] - a[1]);
      pointed.textContent = parts.map(item => item[0] + " " + ms(item[1])).join(" \u00b7 ");
      cursor.style.left = (index + 0.47 - from) / (until - from) * 100 + "%";
      plot.append(cursor);
    };
    const leave = () => {
      cursor.remove(); brush.remove();
      start = null; lead.textContent = idle; pointed.textContent = "";
    };
    plot.addEventListener("pointerdown", event => { start = part(event); });
    plot.addEventListener("pointermove", event => {
      const at = part(event);
      show(at);
      if (start === null) return;
      brush.style.left = Math.min(start, at) * 100 + "%";
      brush.style.width = Math.abs(at - start) * 100 + "%";
      plot.append(brush);
    });
    plot.addEventListener("pointerup", event => {
      const at = part(event), a = column(Math.min(start ?? at, at)), b = column(Math.max(start ?? at, at)) + 1;
      brush.remove();
      if (start !== null && Math.abs(at - start) > 0.02 && b - a >= 2) look(a, b);
      start = null;
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("dblclick", () => look(0, rows.length));
    reset.addEventListener("click", () => look(0, rows.length));
  }
})();
"""
