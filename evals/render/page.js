"use strict";
// Tables are whole without this; it only lets a reader sort them.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  if (rows.length < 2) continue;
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort by this column";
    head.replaceChildren(button);
    const numeric = head.classList.contains("n");
    const keyed = rows.some((row) => row.cells[column].dataset.v !== undefined);
    const keyOf = (row) => {
      const cell = row.cells[column];
      if (numeric || keyed) return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      return cell.textContent;
    };
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyedRows = rows.map((row, order) => ({ row, order, key: keyOf(row) }));
      keyedRows.sort((a, b) => {
        // What has no value stays last, whichever way.
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.order - b.order;
        const found = typeof a.key === "string" ? a.key.localeCompare(b.key) : a.key - b.key;
        return (down ? -found : found) || a.order - b.order;
      });
      body.append(...keyedRows.map((item) => item.row));
    });
  });
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
