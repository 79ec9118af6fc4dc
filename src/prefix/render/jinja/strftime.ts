/** Python's `strftime` for a moment in a time zone, in the C locale that engines run in. */

import { UnsupportedTemplate } from "./failures.ts";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June", "July"],
  ...["August", "September", "October", "November", "December"],
];

interface Moment {
  readonly year: number;
  /** 0…11. */
  readonly month: number;
  readonly day: number;
  readonly hour: number;
  readonly minute: number;
  readonly second: number;
}

/** Formats a moment, given as Unix time in ms. Errors: {@link UnsupportedTemplate} for an unknown directive. */
export type Strftime = (format: string, timeMs: number) => string;

/** `timeZone`: IANA name. The zone is loaded at first use, which costs more than the formatting. Errors there: `RangeError`. */
export function createStrftime(timeZone: string): Strftime {
  let zone: Intl.DateTimeFormat | null = null;
  return (format, timeMs) => {
    zone ??= zoneClock(timeZone);
    const moment = momentIn(zone, timeMs);
    return format.replace(/%(-?)([a-zA-Z%])/g, (directive, bare: string, code: string) => {
      const text = field(code, moment);
      if (text === undefined) throw new UnsupportedTemplate(`strftime_now with ${directive}`);
      return bare === "" ? text : text.replace(/^0+(?=\d)/, "");
    });
  };
}

function zoneClock(timeZone: string): Intl.DateTimeFormat {
  return new Intl.DateTimeFormat("en-US", {
    timeZone,
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  });
}

function momentIn(zone: Intl.DateTimeFormat, timeMs: number): Moment {
  const parts = zone.formatToParts(timeMs);
  const part = (type: Intl.DateTimeFormatPartTypes) => Number(parts.find((p) => p.type === type)?.value);
  return {
    year: part("year"),
    month: part("month") - 1,
    day: part("day"),
    hour: part("hour"),
    minute: part("minute"),
    second: part("second"),
  };
}

function field(code: string, moment: Moment): string | undefined {
  const { year, month, day, hour, minute, second } = moment;
  const date = new Date(Date.UTC(year, month, day));
  const two = (value: number) => String(value).padStart(2, "0");
  switch (code) {
    case "%":
      return "%";
    case "Y":
      return String(year);
    case "y":
      return two(year % 100);
    case "m":
      return two(month + 1);
    case "B":
      return MONTHS[month];
    case "b":
    case "h":
      return MONTHS[month]!.slice(0, 3);
    case "d":
      return two(day);
    case "e":
      return String(day).padStart(2, " ");
    case "j":
      return String((date.getTime() - Date.UTC(year, 0, 0)) / 86_400_000).padStart(3, "0");
    case "A":
      return DAYS[date.getUTCDay()];
    case "a":
      return DAYS[date.getUTCDay()]!.slice(0, 3);
    case "w":
      return String(date.getUTCDay());
    case "u":
      return String(date.getUTCDay() || 7);
    case "H":
      return two(hour);
    case "I":
      return two(hour % 12 || 12);
    case "p":
      return hour < 12 ? "AM" : "PM";
    case "M":
      return two(minute);
    case "S":
      return two(second);
    case "F":
      return `${year}-${two(month + 1)}-${two(day)}`;
    case "T":
      return `${two(hour)}:${two(minute)}:${two(second)}`;
    case "D":
      return `${two(month + 1)}/${two(day)}/${two(year % 100)}`;
    case "R":
      return `${two(hour)}:${two(minute)}`;
    default:
      // Zone names and offsets (%Z, %z) of Python's naive local time are empty.
      return code === "Z" || code === "z" ? "" : undefined;
  }
}
