// Keeps a scrolling box at its end.

/**
 * Keeps a scroll area at its end as it grows, until its reader scrolls up; `jump` goes back to following.
 *
 * @param {HTMLElement} box @param {(following: boolean) => void} [onChange]
 */
export function follower(box, onChange = () => {}) {
  let following = true;
  let last = 0;
  const set = (value) => {
    if (value !== following) onChange((following = value));
  };
  box.addEventListener("scroll", () => {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    if (atEnd) set(true);
    else if (box.scrollTop < last - 2) set(false);
    last = box.scrollTop;
  }, { passive: true });
  const toEnd = () => {
    box.scrollTop = box.scrollHeight;
    last = box.scrollTop;
  };
  return {
    settle: () => following && toEnd(),
    hold: () => set(false),
    jump: () => { set(true); toEnd(); },
    get on() { return following; },
  };
}
