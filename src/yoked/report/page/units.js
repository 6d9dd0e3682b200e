"use strict";
// Numbers with units as src/yoked/units.py writes them; a test compares the two.
const units = (() => {
  const PREFIXES = ["", "k", "M", "G", "T", "P"];

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  /** Decimals that make three significant digits, at most two. */
  function digits(magnitude) {
    if (magnitude >= 99.95) return 0;
    return magnitude >= 9.995 ? 1 : 2;
  }

  function scaled(value, unit) {
    let magnitude = Math.abs(value);
    let power = 0;
    // 999.5 would be printed as "1000 k".
    while (magnitude >= 999.5 && power < PREFIXES.length - 1) {
      magnitude /= 1000;
      power += 1;
    }
    const places = power === 0 && Number.isInteger(value) ? 0 : digits(magnitude);
    return `${value < 0 ? "-" : ""}${magnitude.toFixed(places)} ${PREFIXES[power]}${unit}`.trimEnd();
  }

  /** 1234567.8 -> "1,234,568"; places: decimals. */
  function grouped(value, places = 0) {
    const [whole, rest] = Math.abs(value).toFixed(places).split(".");
    const sign = value < 0 ? "-" : "";
    return sign + whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
  }

  const bytes = (size) => scaled(size, "B");
  const bytesPerS = (rate) => scaled(rate, "B/s");

  function count(value) {
    if (Math.abs(value) < 10000) return grouped(value, Number.isInteger(value) ? 0 : 2);
    return scaled(value, "").replace(" ", "").replace("G", "B");
  }

  const two = (value) => String(value).padStart(2, "0");

  function duration(time_s) {
    if (time_s === 0) return "0 s";
    if (time_s < 1e-3) return `${(time_s * 1e6).toFixed(0)} µs`;
    if (time_s < 0.1) return `${(time_s * 1e3).toFixed(digits(time_s * 1e3))} ms`;
    if (time_s < 59.5) return `${time_s.toFixed(digits(time_s))} s`;
    const seconds = Math.round(time_s);
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
    const minutes = Math.round(time_s / 60);
    if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
    const hours = Math.round(time_s / 3600);
    return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
  }

  const percent = (share) => `${(100 * share).toFixed(share >= 0.0995 || share === 0 ? 0 : 1)}%`;
  const plural = (number, word) => `${grouped(number)} ${word}${number === 1 ? "" : "s"}`;

  /** `a`, `a and b`, `a, b and c`. */
  function listed(words) {
    if (words.length < 2) return words.join("");
    return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
  }

  /** A time of day where the reader is, such as `22:05:09`; "" of what is no time. */
  function clock(time_s) {
    const date = new Date(time_s * 1000);
    if (Number.isNaN(date.getTime())) return "";
    return [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  }

  /** A day where the reader is, such as `2026-11-27`. */
  function day(time_s) {
    const date = new Date(time_s * 1000);
    if (Number.isNaN(date.getTime())) return "";
    return [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  }

  return {
    isNumber, grouped, bytes, bytesPerS, count, duration, percent, plural, listed, clock, day,
  };
})();
