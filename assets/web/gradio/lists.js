// Gradio opens a field's list with the field, and takes it down when the focus goes on. Where the list is long enough to
// scroll, browsers would send the focus there first, and then it would be nowhere.

document.addEventListener("keydown", ({ key, target }) => {
  if (key !== "Tab" || !(target instanceof HTMLElement) || target.role !== "combobox") return;
  const list = document.getElementById(target.getAttribute("aria-controls") ?? "");
  if (list) list.tabIndex = -1;
}, true);
