// A page that frames this one, as the hub's does, makes the frame as tall as all of its content. Then what is fixed to the
// window's edge, or opens in its middle, is out of sight, and nothing sticks. Gradio can have the frame cover what is seen of it
// instead; the body scrolls then (page.css), as the framing page has taken scrolling away from the window.

const cover = () => document.documentElement.toggleAttribute("data-gradio-cover", true);

// What is embedded, with ?embed=1, is a part of another text and as long as it is.
if (new URLSearchParams(location.search).get("embed") !== "1") {
  if ("parentIFrame" in window) cover();
  else window.addEventListener("gradio:iframe-resizer-ready", cover);
}
