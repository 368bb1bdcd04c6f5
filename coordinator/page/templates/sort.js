"use strict";
// Rows of a table are sorted by the column whose heading is pressed; without this script the table is read as it is.
for (const table of document.querySelectorAll("table[data-sorts]")) {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort the rows by this column";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === "");
        const numbers = [Number(a), Number(b)];
        const order = numbers.some(Number.isNaN) ? a.localeCompare(b) : numbers[0] - numbers[1];
        return up ? order : -order;
      });
      body.replaceChildren(...rows);
    });
  });
}
