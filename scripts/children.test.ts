/** Processes that are started together leave nothing behind, and one that dies is heard of with what it said. */

import { afterEach, expect, it } from "vitest";
import { isAlive } from "../test/support/server-processes.ts";
import { Children } from "./children.ts";

const started: Children[] = [];

function children(onDeath: (error: Error) => void = () => undefined): Children {
  const made = new Children({ onDeath, endTimeoutMs: 200 });
  started.push(made);
  return made;
}

/** Runs a program that says its pid and then stays. */
function stay(of: Children, name: string, before = ""): { pid: number; ready: Promise<number> } {
  const child = of.start(name, process.execPath, [
    "-e",
    `${before}; console.log("pid " + process.pid); setInterval(() => {}, 1000)`,
  ]);
  return { pid: child.pid, ready: child.said((line) => pidIn(line)) };
}

function pidIn(line: string): number | null {
  const found = /^pid (\d+)$/.exec(line)?.[1];
  return found === undefined ? null : Number(found);
}

afterEach(async () => {
  for (const each of started.splice(0)) await each.end();
});

it("ends all of them, a deaf one and the children of children too", async () => {
  const all = children();
  const plain = stay(all, "plain");
  const deaf = stay(all, "deaf", "process.on('SIGTERM', () => {})");
  const grandchild = `require("node:child_process").spawn(process.execPath, ["-e", "console.log('pid ' + process.pid); setInterval(() => {}, 1000)"], { stdio: "inherit" })`;
  const parent = all.start("parent", process.execPath, ["-e", `${grandchild}; setInterval(() => {}, 1000)`]);
  const pids = [await plain.ready, await deaf.ready, parent.pid, await parent.said(pidIn)];
  expect(pids.map(isAlive)).toEqual([true, true, true, true]);
  await all.end();
  await expect.poll(() => pids.map(isAlive)).toEqual([false, false, false, false]);
});

it("a death that nobody asked for is told, with the last output", async () => {
  const deaths: string[] = [];
  const all = children((error) => deaths.push(error.message));
  const child = all.start("doomed", process.execPath, [
    "-e",
    `console.log("one thing"); console.error("and why"); process.exitCode = 3`,
  ]);
  await expect(child.said(pidIn)).rejects.toThrow(/doomed ended.*\n(one thing\nand why|and why\none thing)/);
  expect(deaths).toHaveLength(1);
});

it("a program that is not there is a death too", async () => {
  const child = children().start("missing", "/nonexistent/program", []);
  await expect(child.said(pidIn)).rejects.toThrow("ENOENT");
});

it("an end that was asked for is no death", async () => {
  const deaths: string[] = [];
  const all = children((error) => deaths.push(error.message));
  await stay(all, "calm").ready;
  await all.end();
  expect(deaths).toEqual([]);
});
