// Shows and hides a block of controls. The body of a gr.HTML component's js_on_load.

const button = element.querySelector("button");

button.addEventListener("click", () => {
  const open = button.getAttribute("aria-expanded") === "false";
  button.setAttribute("aria-expanded", String(open));
  document.getElementById(button.getAttribute("aria-controls")).classList.toggle("sv-open", open);
});
