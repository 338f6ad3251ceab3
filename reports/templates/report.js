"use strict";
(function () {
  const $ = (id) => document.getElementById(id);
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  // Hover, focus and touch show a mark's numbers; arrow keys step through the marks of a figure.
  const tip = $("tip");
  let current = null;
  function show(mark) {
    current = mark;
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const at = mark.querySelector(".dot").getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - box.width / 2), document.documentElement.clientWidth - box.width - 8);
    const above = at.top - box.height - 10;
    tip.style.left = left + "px";
    tip.style.top = (above > 8 ? above : at.bottom + 10) + "px";
  }
  function hide() { current = null; tip.hidden = true; }
  for (const mark of all(".mark")) {
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("blur", hide);
  }
  for (const plot of all(".plot")) {
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      const marks = all(".mark", plot);
      if (event.key === "Escape") { hide(); plot.focus(); }
      if (!step || !marks.length) return;
      event.preventDefault();
      const now = marks.indexOf(document.activeElement);
      marks[now < 0 ? (step > 0 ? 0 : marks.length - 1) : (now + step + marks.length) % marks.length].focus();
    });
  }
  addEventListener("scroll", () => { if (current) show(current); }, { passive: true });

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
      // A text that a spreadsheet would take for a formula gets an apostrophe.
      const field = (value) => {
        if (value === null) return "";
        if (typeof value === "number") return String(value);
        const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
        return /[",\r\n]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
      };
      const csv = [data.columns, ...data.rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
      const link = document.createElement("a");
      link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(csv);
      link.download = data.run.replace(/[^\w.-]+/g, "_") + "-cells.csv";
      link.click();
    });
    all(".tools").forEach((tools) => { tools.hidden = false; });
  }

  for (const button of all(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
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
  }

  // On paper everything is open.
  addEventListener("beforeprint", () => all("details").forEach((d) => { d.open = true; }));
})();
