// Joins a gr.HTML component to a module of this folder; the same for every component. The body of js_on_load, where
// Gradio gives `element`, `props`, `watch`, `trigger` and `server`; `MODULE` and `GIVEN` stand above (ui/components.py).
// Values that come before the module is here wait for it.

const waiting = props.value ? [props.value] : [];
let take = (value) => waiting.push(value);
watch("value", () => take(props.value));
import(new URL(MODULE, document.baseURI).href).then(({ join }) => {
  take = join({ element, trigger, server }, GIVEN);
  waiting.forEach((value) => take(value));
});
