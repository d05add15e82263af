// Keeps a scrolling box at its end.

/**
 * Keeps a scroll area at the end of its content, until its reader scrolls up; `jump` goes back to following. What is far
 * away gets its true height only when it comes near, and lines wrap anew in a narrower window: so whenever a height
 * changes, before it is painted, the end is gone to again.
 *
 * @param {HTMLElement} box @param {HTMLElement} content @param {(following: boolean) => void} [onChange]
 */
export function follower(box, content, onChange = () => {}) {
  let following = true;
  let last = { top: 0, height: 0 }; // where the box stood, and how high its content was
  const set = (value) => {
    if (value !== following) onChange((following = value));
  };
  const note = () => { last = { top: box.scrollTop, height: box.scrollHeight }; };
  const settle = () => {
    if (!following) return;
    box.scrollTop = box.scrollHeight;
    note();
  };
  box.addEventListener("scroll", () => {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    if (atEnd) set(true);
    else if (box.scrollHeight !== last.height) settle(); // the content has moved, not its reader
    else if (box.scrollTop < last.top - 2) set(false);
    note();
  }, { passive: true });
  const sizes = new ResizeObserver(settle);
  for (const node of [box, content]) sizes.observe(node);
  return {
    hold: () => set(false),
    jump: () => { set(true); settle(); },
    get on() { return following; },
  };
}
