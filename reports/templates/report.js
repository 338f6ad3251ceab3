"use strict";
(function () {
  const $ = (id) => document.getElementById(id);
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  // Hover, focus and touch show a mark's numbers; arrow keys step through the marks of a figure.
  const tip = $("tip");
  let current = null;
  function show(mark) {
    current = mark;
    tip.textContent = mark.dataset.tip || mark.getAttribute("aria-label");
    tip.hidden = false;
    const at = (mark.querySelector(".dot, .at") || mark).getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - box.width / 2), document.documentElement.clientWidth - box.width - 8);
    const above = at.top - box.height - 10, below = at.bottom + 10;
    tip.style.left = left + "px";
    // Above a mark, else below it, else (a tall mark) at the top of the screen.
    tip.style.top = (above > 8 ? above : below + box.height < innerHeight ? below : 8) + "px";
  }
  function hide() { current = null; tip.hidden = true; }
  // Views are changed while the page is open, so the page listens for all marks at once.
  const markOf = (event) => event.target instanceof Element ? event.target.closest(".mark, [data-tip]") : null;
  addEventListener("pointerover", (event) => {
    const mark = markOf(event);
    if (mark && mark !== current) show(mark);
    else if (!mark && current && !current.contains(document.activeElement)) hide();
  });
  addEventListener("focusin", (event) => { const mark = markOf(event); if (mark) show(mark); else if (current) hide(); });
  addEventListener("keydown", (event) => {
    const plot = event.target instanceof Element ? event.target.closest(".plot") : null;
    if (!plot) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const marks = all(".mark", plot);
    if (event.key === "Escape") { plot.focus(); hide(); }
    if (!step || !marks.length) return;
    event.preventDefault();
    const now = marks.indexOf(document.activeElement);
    marks[now < 0 ? (step > 0 ? 0 : marks.length - 1) : (now + step + marks.length) % marks.length].focus();
  });
  addEventListener("scroll", () => { if (current) show(current); }, { passive: true });

  // Tables as CSV: a link made here, for what is in the page.
  function download(rows, name) {
    // A text that a spreadsheet would take for a formula gets an apostrophe.
    const field = (value) => {
      if (value === null) return "";
      if (typeof value === "number") return String(value);
      const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
      return /[",\r\n]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
    };
    const csv = rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(csv);
    link.download = ((document.body.dataset.run || "dyno") + "-" + name).replace(/[^\w.-]+/g, "_") + ".csv";
    link.click();
  }
  for (const scroll of all(".scroll")) {
    const shown = scroll.querySelector("table");
    if (!shown || shown.id === "cell-table") continue;
    const name = scroll.getAttribute("aria-label") || "table";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "table-csv";
    button.textContent = "CSV";
    button.setAttribute("aria-label", "Download as CSV: " + name);
    button.addEventListener("click", () => {
      const rows = Array.from(shown.rows).map((row) => Array.from(row.cells).map((cell) => {
        const text = cell.textContent.replace(/\s+/g, " ").trim();
        return /^[+-]?[\d,]*\.?\d+$/.test(text) ? Number(text.replace(/,/g, "")) : text;
      }));
      download(rows, name.toLowerCase());
    });
    scroll.before(button);
  }

  // Of a long table the first rows, and the rest when asked; the table of cells has its fold and its filter.
  const MOST = 10;
  for (const long of all(".scroll > table")) {
    const rows = long.tBodies[0].rows.length;
    if (long.id === "cell-table" || rows <= MOST + 2) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "show-all";
    button.textContent = "Show all " + rows + " rows";
    button.addEventListener("click", () => { long.classList.remove("long"); button.remove(); });
    long.classList.add("long");
    long.parentElement.after(button);
  }
  // On a phone what tells more than the answer is shut until asked for.
  const phone = matchMedia("screen and (max-width: 760px)");
  const shape = () => all("details.wide").forEach((d) => { d.open = !phone.matches; });
  phone.addEventListener("change", shape);
  if (phone.matches) shape();

  // The table of cells: sort by any heading, filter by any word.
  const table = $("cell-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    const key = (row, i) => {
      const cell = row.cells[i];
      if (!("sort" in cell.dataset)) return cell.textContent.trim();
      return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
    };
    heads.forEach((head, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = rows.slice().sort((a, b) => {
          const x = key(a, i), y = key(b, i);
          if (x === null || y === null) return (x === null) - (y === null);
          const by = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
          return down ? -by : by;
        });
        body.append(...order);
      });
    });
    const filter = $("filter"), shown = $("filter-count");
    // Names, loads, verdicts and reasons are searched, not the measured numbers; "16" finds batch 16 and not 160.
    const text = new Map(rows.map((row) => {
      const named = Array.from(row.cells).filter((cell) => !cell.classList.contains("n")).map((cell) => cell.textContent);
      const found = [...named, row.dataset.find].join(" ").toLowerCase().replace(/(\d),(?=\d{3})/g, "$1");
      return [row, { found, numbers: new Set(found.match(/\d+/g)) }];
    }));
    const matches = (row, word) => /^\d+$/.test(word) ? text.get(row).numbers.has(word) : text.get(row).found.includes(word);
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let n = 0;
      for (const row of rows) {
        row.hidden = !words.every((word) => matches(row, word));
        if (!row.hidden) n += 1;
      }
      shown.textContent = (n === rows.length ? n : n + " of " + rows.length) + (rows.length === 1 ? " cell" : " cells");
    });
    $("csv").addEventListener("click", () => {
      const data = JSON.parse($("cell-data").textContent);
      download([data.columns, ...data.rows], "cells");
    });
    $("cell-tools").hidden = false;
  }

  // Of cells and engines one view is in the page; the others are packed beside it.
  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }
  for (const list of all("select.views")) {
    if (list.options.length < 2 || typeof DecompressionStream === "undefined") continue;
    const packed = JSON.parse($(list.dataset.views).textContent), target = $(list.dataset.target);
    list.closest(".tools").hidden = false;
    list.addEventListener("change", async () => {
      const wanted = list.value, view = await unpack(packed[Number(wanted)]);
      // Made by Dyno itself, every name in it escaped; a slower one must not come after a later choice.
      if (list.value === wanted) { hide(); target.innerHTML = view; }
    });
  }

  document.body.classList.add("scripted");
  addEventListener("click", async (event) => {
      const button = event.target instanceof Element ? event.target.closest(".copy") : null;
      if (!button) return;
      const source = $(button.dataset.copy);
      let done = true;
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch (error) {
        // Without clipboard rights (some browsers, file://): select the text, so that a key press copies it.
        getSelection().selectAllChildren(source);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Selected";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });

  // On paper everything is open; afterwards it is as it was.
  let shut = [];
  addEventListener("beforeprint", () => { shut = all("details:not([open])"); shut.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => shut.forEach((d) => { d.open = false; }));
})();
