// What people answered, as a table for a spreadsheet and for `python -m specviz gain`.

/** @typedef {"before" | "after"} Phase */
/** @typedef {{ form: number, chosen: number[], seconds: number[] }} Answers By question: the index of the option, and how long it took. */
/** @typedef {{ before?: Answers, after?: Answers }} Person */
/** @typedef {{ name: string, values: Record<string, any>, options: Option[], truth: number }} Question */
/** @typedef {{ key: string, [value: string]: any }} Option */

/** @type {Phase[]} */
export const PHASES = ["before", "after"];

/** By question, whether the answer was right. @param {Question[][]} forms @param {Answers} answers */
export const marks = (forms, { form, chosen }) => forms[form].map(({ truth }, i) => chosen[i] === truth);

/**
 * CSV, a row for each person and question. form: which one came before. before, after: 1 if it was answered rightly, 0 if
 * not, empty if not at all. seconds: both times together. person: a number that joins the rows of one person.
 *
 * @param {Question[][]} forms @param {[string, Person][]} people by what takes the place of their names
 */
export function table(forms, people) {
  const rows = people.flatMap(([person, answers]) => {
    const given = PHASES.flatMap((phase) => answers[phase] ?? []);
    if (!given.length) return [];
    const first = answers.before?.form ?? 1 - given[0].form;
    const [before, after] = PHASES.map((phase) => answers[phase] && marks(forms, answers[phase]).map(Number));
    return forms[first].map(({ name }, i) => {
      const seconds = given.reduce((sum, one) => sum + one.seconds[i], 0);
      return ["AB"[first], name, before?.[i], after?.[i], seconds.toFixed(1), person];
    });
  });
  return [["form", "item", ...PHASES, "seconds", "person"], ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}
