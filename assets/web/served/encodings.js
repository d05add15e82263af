// The text of a file from any system: UTF-8, UTF-16 or UTF-32, with a byte order mark or without, packed by gzip or not.

/** What a file holds, unpacked. @param {File} file */
export async function bytesOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const unpacked = new Response(file.stream().pipeThrough(new DecompressionStream("gzip")));
  return unpacked.arrayBuffer().then((buffer) => new Uint8Array(buffer), () => bytes); // what is damaged is refused when it is read
}

/** By which of the first four bytes are not 0: text of this kind begins with characters of ASCII. */
const UNMARKED = { "0001": "utf-32be", "1000": "utf-32le", "0101": "utf-16be", "1010": "utf-16le" };

/** @param {Uint8Array} bytes */
export function textOf(bytes) {
  const encoding = encodingOf(bytes);
  return encoding.startsWith("utf-32") ? wideText(bytes, encoding.endsWith("le")) : new TextDecoder(encoding).decode(bytes);
}

/** @param {Uint8Array} bytes */
function encodingOf(bytes) {
  const first = bytes.subarray(0, 4).join(" ");
  if (first === "255 254 0 0") return "utf-32le";
  if (first === "0 0 254 255") return "utf-32be";
  if (first.startsWith("255 254")) return "utf-16le";
  if (first.startsWith("254 255")) return "utf-16be";
  const pattern = Array.from(bytes.subarray(0, 4), (byte) => (byte ? 1 : 0)).join("");
  return UNMARKED[/** @type {keyof typeof UNMARKED} */ (pattern)] ?? "utf-8";
}

/** Browsers do not decode UTF-32. @param {Uint8Array} bytes @param {boolean} little */
function wideText(bytes, little) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const characters = [];
  for (let at = 0; at + 4 <= bytes.byteLength; at += 4) {
    const code = view.getUint32(at, little);
    characters.push(code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd");
  }
  return characters.join("");
}
