// A lesson's notes (specviz/ui/routes/notes.py): marks what the class is looking at.

document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);

const slides = [...document.querySelectorAll('a[target="specviz"]')];
document.addEventListener("click", ({ target }) => {
  const slide = target instanceof Element && target.closest('a[target="specviz"]');
  if (slide) for (const one of slides) one.toggleAttribute("data-shown", one === slide);
});
