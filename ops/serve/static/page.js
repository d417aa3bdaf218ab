// Keeps the page's sections up to date, and lets the arrow keys walk over the map. Without it the page still works.
"use strict";

const trouble = document.getElementById("trouble");

function say(message) {
  trouble.textContent = message;
  trouble.hidden = !message;
}

// What finds a link again after its section was replaced: its cell of the map, or where it leads.
function marker(link) {
  const { column, row } = link.dataset;
  return column ? `a[data-column="${column}"][data-row="${row}"]` : `a[href="${CSS.escape(link.getAttribute("href"))}"]`;
}

// Replace a section and keep what the reader was doing in it: the focus, opened details, scrolled lists.
function replace(section, html) {
  const focused = section.contains(document.activeElement) ? document.activeElement.closest("a") : null;
  const wanted = focused && marker(focused);
  const opened = [...section.querySelectorAll("details")].map((details) => details.open);
  const scrolled = [...section.querySelectorAll(".scroll, ul, pre")].map((part) => part.scrollTop);
  section.innerHTML = html;
  section.querySelectorAll("details").forEach((details, i) => { details.open = opened[i] ?? false; });
  section.querySelectorAll(".scroll, ul, pre").forEach((part, i) => { part.scrollTop = scrolled[i] ?? 0; });
  const again = wanted && section.querySelector(wanted);
  if (!again) return;
  if (again.closest(".map")) step(again.closest(".map"), again);
  else again.focus({ preventScroll: true });
}

function listen() {
  const source = new EventSource(document.body.dataset.events);
  source.addEventListener("sections", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) {
      const section = document.getElementById(id);
      if (section) replace(section, html);
    }
    say("");
    document.body.dataset.live = "yes";
  });
  source.addEventListener("trouble", (event) => say(JSON.parse(event.data).message));
  source.onerror = () => {
    say("The server does not answer; what is shown may be old.");
    document.body.dataset.live = "no";
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
  source.onopen = () => say("");
}

// One cell of the map is in the tab order; the arrow keys go to the nearest cell in their direction.
function step(map, cell) {
  for (const other of map.querySelectorAll("a[tabindex='0']")) other.setAttribute("tabindex", "-1");
  cell.setAttribute("tabindex", "0");
  cell.focus({ preventScroll: true });
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

document.addEventListener("keydown", (event) => {
  const cell = document.activeElement?.closest?.(".map a");
  const direction = DIRECTIONS[event.key];
  if (!cell || !direction) return;
  event.preventDefault();
  const map = cell.closest(".map");
  const place = (link) => [Number(link.dataset.column), Number(link.dataset.row)];
  const [column, row] = place(cell);
  let best = null;
  let least = Infinity;
  for (const link of map.querySelectorAll("a")) {
    const [dx, dy] = [place(link)[0] - column, place(link)[1] - row];
    const along = dx * direction[0] + dy * direction[1];
    const aside = Math.abs(dx * direction[1]) + Math.abs(dy * direction[0]);
    if (along > 0 && along + 3 * aside < least) [best, least] = [link, along + 3 * aside];
  }
  if (best) step(map, best);
});

listen();
