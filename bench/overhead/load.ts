/** A load client on raw sockets: closed loop, kept-alive, as little work per request as can be. Run as a child process. */

import { connect, type Socket } from "node:net";
import type { LoadJob, LoadResult } from "./protocol.ts";

const HEADER_END = Buffer.from("\r\n\r\n");
const CHUNKED_END = Buffer.from("0\r\n\r\n");
const DONE = Buffer.from("[DONE]");

class Timings {
  readonly firstByteMs: number[] = [];
  readonly totalMs: number[] = [];
  requests = 0;
}

function requestsOf(job: LoadJob): Buffer[] {
  return Array.from({ length: job.prompts }, (_, i) => {
    const body = JSON.stringify({
      model: job.model,
      stream: true,
      max_tokens: 16,
      messages: [
        { role: "system", content: "You are a benchmark. Answer at once." },
        { role: "user", content: promptText(i, job.promptBytes) },
      ],
    });
    const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: ${job.host}:${job.port}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n`;
    return Buffer.from(head + body);
  });
}

const WORDS = "harbour tide ship rope mast sail keel anchor buoy chart wind wave crew deck port star".split(
  " ",
);

/** Deterministic words with some punctuation and escapes, as prompts have them. */
function promptText(seed: number, bytes: number): string {
  let state = seed * 2_654_435_761 + 1;
  let text = `Question ${seed}:\n`;
  while (text.length < bytes) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    text += `${WORDS[state >>> 28]}${state % 17 === 0 ? ".\n" : " "}`;
  }
  return text;
}

/** One connection's closed loop until `untilMs`; requests that began before `fromMs` are warm-up. */
function drive(
  job: LoadJob,
  requests: readonly Buffer[],
  offset: number,
  timings: Timings,
  fromMs: number,
  untilMs: number,
) {
  return new Promise<void>((resolve, reject) => {
    const socket: Socket = connect({ host: job.host, port: job.port, noDelay: true });
    let next = offset;
    let startMs = 0;
    let firstMs = 0;
    let inBody = false;
    let tail: Buffer = Buffer.alloc(0);
    const send = () => {
      inBody = false;
      firstMs = 0;
      tail = Buffer.alloc(0);
      startMs = performance.now();
      socket.write(requests[next++ % requests.length]!);
    };
    socket.on("connect", send);
    socket.on("error", reject);
    socket.on("close", () => reject(new Error("The server closed the connection.")));
    socket.on("data", (data: Buffer) => {
      let body = data;
      if (!inBody) {
        const end = data.indexOf(HEADER_END);
        if (end < 0 || !data.subarray(0, 12).toString("latin1").endsWith("200")) {
          reject(new Error(`Unexpected answer: ${data.subarray(0, 200).toString()}`));
          socket.destroy();
          return;
        }
        inBody = true;
        body = data.subarray(end + HEADER_END.length);
      }
      if (body.length === 0) return;
      if (firstMs === 0) firstMs = performance.now();
      tail = body.length >= 64 ? body : Buffer.concat([tail, body]);
      if (!tail.subarray(-CHUNKED_END.length).equals(CHUNKED_END)) return;
      const endMs = performance.now();
      if (tail.subarray(-64).indexOf(DONE) < 0) {
        reject(new Error("A stream ended without its end mark."));
        socket.destroy();
        return;
      }
      timings.requests++;
      if (startMs >= fromMs && endMs <= untilMs) {
        timings.firstByteMs.push(firstMs - startMs);
        timings.totalMs.push(endMs - startMs);
      }
      if (endMs < untilMs) send();
      else {
        socket.removeAllListeners("close");
        socket.end();
        resolve();
      }
    });
  });
}

async function run(job: LoadJob): Promise<LoadResult> {
  const requests = requestsOf(job);
  const timings = new Timings();
  const fromMs = performance.now() + job.warmUpMs;
  const untilMs = fromMs + job.durationMs;
  await Promise.all(
    Array.from({ length: job.clients }, (_, i) =>
      drive(job, requests, Math.floor((i * job.prompts) / job.clients), timings, fromMs, untilMs),
    ),
  );
  return { ...timings, durationMs: job.durationMs };
}

run(JSON.parse(process.argv[2]!) as LoadJob).then(
  (result) => process.stdout.write(JSON.stringify(result)),
  (error) => {
    process.stderr.write(`${error instanceof Error ? error.message : error}\n`);
    process.exitCode = 1;
  },
);
