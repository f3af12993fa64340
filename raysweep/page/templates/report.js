"use strict";
(() => {
  const table = document.getElementById("all");
  let body = table.tBodies[0];
  let rows = Array.from(body.rows);
  const count = document.getElementById("count");
  const text = document.getElementById("filter-text");
  const status = document.getElementById("filter-status");
  const stage = document.getElementById("filter-stage");
  const more = document.getElementById("more");
  // Laying out thousands of rows takes seconds, so the first are shown until all are asked for.
  let limit = Number(table.dataset.limit);
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.classList.contains("n")
      ? (cell.textContent === "" ? null : Number(cell.textContent))
      : cell.textContent;
  };
  const sort = (head, column) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    order(column, ascending);
  };
  const order = (column, ascending) => {
    const keyed = rows.map((row) => [valueOf(row, column), row]);
    keyed.sort(([a], [b]) => {
      // What has no value stays at the end, whichever way it is sorted.
      if (a === null || b === null) return (a === null) - (b === null);
      const least = typeof a === "number" ? a - b : (a < b ? -1 : a > b ? 1 : 0);
      return ascending ? least : -least;
    });
    body.append(...keyed.map(([, row]) => row));
    filter();
  };
  const filter = () => {
    const wanted = text.value.toLowerCase();
    let shown = 0;
    for (const row of body.rows) {
      const fits = (!wanted || row.textContent.toLowerCase().includes(wanted))
        && (!status.value || row.dataset.status === status.value)
        && (!stage.value || row.cells[1].textContent === stage.value);
      row.hidden = !fits;
      shown += fits;
      row.classList.toggle("rest", fits && shown > limit);
    }
    count.textContent = `${shown} of ${rows.length} candidates`;
    more.hidden = shown <= limit;
    more.textContent = `Show all ${shown}, not only the first ${limit}`;
  };
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(head, column));
  });
  for (const each of [text, status, stage]) each.addEventListener("input", filter);
  more.addEventListener("click", () => { limit = Infinity; filter(); });
  document.getElementById("filters").hidden = false;
  // The live page puts new rows in place of these.
  document.addEventListener("newrows", () => {
    body = table.tBodies[0];
    rows = Array.from(body.rows);
    const column = Array.from(table.tHead.rows[0].cells).findIndex((head) => head.hasAttribute("aria-sort"));
    if (column < 0) filter();
    else order(column, table.tHead.rows[0].cells[column].getAttribute("aria-sort") === "ascending");
  });
  filter();
})();
