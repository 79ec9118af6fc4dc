/** `npm run dev:edge`: the whole distributed plane on this machine: Redis, NATS, redis-rest, indexer, two agents with mock engines, and the gateway Worker in workerd. */

import { spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { findNatsServers, findRedisServer, freePort } from "../test/support/server-processes.ts";
import { type Child, Children } from "./children.ts";
import { missingServers } from "./servers.ts";

const PARTS = ["gateway", "redis", "nats", "rest", "indexer", "agent-1", "agent-2"] as const;
type Part = (typeof PARTS)[number];
type Ports = Record<Part, number>;

const DEFAULT_GATEWAY_PORT = 8787;
const FIRST_ANSWER_TIMEOUT_MS = 60_000;
const POLL_MS = 200;
const MODEL = "mock";

const HELP = `dev:edge [--ports part=port,…] [--profile name] [--json]
  --ports    fixed ports for any of ${PARTS.join(", ")};
             0: any free one (default: gateway=${DEFAULT_GATEWAY_PORT}, the others free ones)
  --profile  timing of the mock engines: 8b-h100 (default), 70b-tp4-h100 or zero
  --logs     print what the parts say
  --json     print what runs as one line of JSON`;

interface Secrets {
  readonly apiKey: string;
  readonly redisToken: string;
  /** Private key of the gateway, and the public half for the agents. */
  readonly planKey: string;
  readonly planJwks: string;
}

interface Running {
  readonly url: string;
  readonly key: string;
  readonly model: string;
  readonly ports: Ports;
  readonly pids: Readonly<Record<string, number>>;
}

const NODE = [process.execPath, "--disable-warning=ExperimentalWarning"] as const;

class Plane {
  readonly #children: Children;
  readonly #folder: string;
  readonly #ports: Ports;
  readonly #profile: string;
  readonly #secrets: Secrets;
  readonly #pids: Record<string, number> = {};

  constructor(children: Children, folder: string, ports: Ports, profile: string) {
    this.#children = children;
    this.#folder = folder;
    this.#ports = ports;
    this.#profile = profile;
    this.#secrets = newSecrets();
  }

  async start(): Promise<Running> {
    await Promise.all([this.#redis(), this.#nats()]);
    await this.#rest();
    await Promise.all([this.#indexer(), this.#agent(1), this.#agent(2), this.#gateway()]);
    const url = `http://127.0.0.1:${this.#ports.gateway}`;
    await firstAnswer(url, this.#secrets.apiKey);
    return { url, key: this.#secrets.apiKey, model: MODEL, ports: this.#ports, pids: this.#pids };
  }

  async #redis(): Promise<void> {
    const port = `${this.#ports.redis}`;
    const args = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    const redis = this.#run("redis", findRedisServer() ?? "", [...args, "--dir", this.#folder]);
    await redis.said(containing("Ready to accept connections"));
  }

  async #nats(): Promise<void> {
    const file = join(this.#folder, "nats.conf");
    // The client port is not needed, but cannot be switched off.
    const config = `listen: "127.0.0.1:${await freePort()}"
websocket { listen: "127.0.0.1:${this.#ports.nats}", no_tls: true }
jetstream { store_dir: "${join(this.#folder, "jetstream")}" }
`;
    writeFileSync(file, config);
    const nats = this.#run("nats", findNatsServers()[0] ?? "", ["-c", file]);
    await nats.said(containing("Server is ready"));
  }

  async #rest(): Promise<void> {
    const rest = this.#kedge(
      "rest",
      ["redis-rest", "--redis", `redis://127.0.0.1:${this.#ports.redis}`, "--port", `${this.#ports.rest}`],
      { KEDGE_REST_TOKEN: this.#secrets.redisToken },
    );
    await rest.said(json);
  }

  async #indexer(): Promise<void> {
    const indexer = this.#kedge("indexer", ["indexer", "--port", `${this.#ports.indexer}`], {
      ...this.#store(),
      ...this.#bus(),
    });
    await indexer.said(json);
  }

  async #agent(number: 1 | 2): Promise<void> {
    const name = `agent-${number}` as const;
    const agent = this.#kedge(
      name,
      ["agent", "--mock", "1", "--profile", this.#profile, "--port", `${this.#ports[name]}`],
      { ...this.#bus(), KEDGE_NODE: `node-${number}`, KEDGE_PLAN_JWKS: this.#secrets.planJwks },
    );
    await agent.said(json);
  }

  async #gateway(): Promise<void> {
    const file = join(this.#folder, "gateway.env");
    const variables: Record<string, string> = {
      ...this.#store(),
      // A development machine is busy with all else that runs here; the edge's 50 ms are for the edge.
      KEDGE_STORE_DEADLINE_MS: "250",
      KEDGE_API_KEYS: createHash("sha256").update(this.#secrets.apiKey).digest("hex"),
      KEDGE_PLAN_KEY: this.#secrets.planKey,
      KEDGE_EXPLAIN: "true",
    };
    const lines = Object.entries(variables).map(([name, value]) => `${name}='${value}'\n`);
    writeFileSync(file, lines.join(""), { mode: 0o600 });
    const gateway = this.#run(
      "gateway",
      process.execPath,
      [
        "node_modules/wrangler/bin/wrangler.js",
        "dev",
        ...["--config", "wrangler.toml", "--env-file", file, "--local"],
        ...["--ip", "127.0.0.1", "--port", `${this.#ports.gateway}`, "--inspector-port", "0"],
        ...["--persist-to", join(this.#folder, "wrangler"), "--show-interactive-dev-session=false"],
      ],
      { ...OFFLINE, WRANGLER_LOG_PATH: join(this.#folder, "wrangler-logs") },
    );
    await gateway.said(containing("Ready on"));
  }

  #store(): Record<string, string> {
    return {
      KEDGE_REDIS_URL: `http://127.0.0.1:${this.#ports.rest}`,
      KEDGE_REDIS_TOKEN: this.#secrets.redisToken,
    };
  }

  #bus(): Record<string, string> {
    return { KEDGE_NATS_URL: `ws://127.0.0.1:${this.#ports.nats}` };
  }

  #kedge(name: string, args: readonly string[], env: Readonly<Record<string, string>>): Child {
    const [node, ...flags] = NODE;
    return this.#run(name, node, [...flags, "src/node/cli/main.ts", ...args, "--json"], env);
  }

  #run(
    name: string,
    command: string,
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Child {
    const child = this.#children.start(name, command, args, env);
    this.#pids[name] = child.pid;
    return child;
  }
}

/** What keeps wrangler from asking the network for anything. */
const OFFLINE = {
  CLOUDFLARE_CF_FETCH_ENABLED: "false",
  WRANGLER_SEND_METRICS: "false",
  WRANGLER_SEND_ERROR_REPORTS: "false",
  WRANGLER_HIDE_BANNER: "true",
};

function newSecrets(): Secrets {
  const [node, ...flags] = NODE;
  const made = spawnSync(node, [...flags, "src/node/cli/main.ts", "plan-key", "--json"], {
    encoding: "utf8",
  });
  if (made.status !== 0) throw new Error(`kedge plan-key failed: ${made.stderr}`);
  const keys = JSON.parse(made.stdout) as { private: object; public: object };
  return {
    apiKey: `sk-dev-${randomBytes(18).toString("base64url")}`,
    redisToken: randomBytes(18).toString("base64url"),
    planKey: JSON.stringify(keys.private),
    planJwks: JSON.stringify(keys.public),
  };
}

const containing =
  (text: string) =>
  (line: string): true | null =>
    line.includes(text) || null;

/** The line with which a `--json` command says that it is ready. */
function json(line: string): object | null {
  return line.startsWith("{") ? (JSON.parse(line) as object) : null;
}

function chat(stream: boolean): string {
  const messages = [{ role: "user", content: "Hello" }];
  return JSON.stringify({ model: MODEL, max_tokens: 16, stream, messages });
}

/** Resolves when the gateway has answered a request, which takes all the parts. */
async function firstAnswer(url: string, key: string): Promise<void> {
  const giveUpMs = performance.now() + FIRST_ANSWER_TIMEOUT_MS;
  let said = "nothing";
  while (performance.now() < giveUpMs) {
    const answer = await ask(url, key).catch((error: Error) => ({ ok: false, said: error.message }));
    if (answer.ok) return;
    said = answer.said;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(
    `no request was answered within ${FIRST_ANSWER_TIMEOUT_MS / 1_000} s; the gateway's last words: ${said}`,
  );
}

async function ask(url: string, key: string): Promise<{ ok: boolean; said: string }> {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: chat(false),
    signal: AbortSignal.timeout(10_000),
  });
  return { ok: response.ok, said: `${response.status} ${await response.text()}` };
}

/** `gateway=8787,nats=0` and defaults as numbers; 0 has become a free port. */
async function portsOf(text: string): Promise<Ports> {
  const ports: Partial<Ports> = { gateway: DEFAULT_GATEWAY_PORT };
  for (const item of text.split(",").filter((each) => each !== "")) {
    const [part, port] = item.split("=");
    if (!PARTS.includes(part as Part) || !/^\d{1,5}$/.test(port ?? "") || Number(port) > 65_535) {
      throw new Error(`--ports: "${item}" is not one of ${PARTS.join(", ")} with a port, e.g. gateway=8787`);
    }
    ports[part as Part] = Number(port);
  }
  for (const part of PARTS) ports[part] ||= await freePort();
  return ports as Ports;
}

function banner({ url, key, ports }: Running): string {
  return `kedge: gateway Worker on ${url}
  redis ${ports.redis}, redis-rest ${ports.rest}, nats (WebSocket) ${ports.nats}, indexer ${ports.indexer}, agents ${ports["agent-1"]} and ${ports["agent-2"]}
  API key ${key}

Mock engines speak vLLM's protocols and make words up. Try:
  curl -sN ${url}/v1/chat/completions -H 'content-type: application/json' -H 'authorization: Bearer ${key}' \\
    -d '${chat(true)}'
And see how it was routed:
  curl -s ${url}/v1/route -H 'content-type: application/json' -H 'authorization: Bearer ${key}' \\
    -d '${chat(false)}'
Ctrl-C ends everything.`;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      ports: { type: "string", default: "" },
      profile: { type: "string", default: "8b-h100" },
      logs: { type: "boolean", default: false },
      json: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) return console.log(HELP);
  const missing = missingServers();
  if (missing.length > 0)
    throw new Error(`${missing.join(" and ")} missing (Debian: apt-get install ${missing.join(" ")})`);
  const ports = await portsOf(values.ports);
  const folder = mkdtempSync(join(tmpdir(), "kedge-dev-edge-"));
  const { promise: over, resolve: stop, reject: fail } = Promise.withResolvers<void>();
  over.catch(() => undefined);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => stop());
  const children = new Children({
    onDeath: fail,
    ...(values.logs && { onLine: (name, line) => console.error(`${name.padEnd(8)} ${line}`) }),
  });
  try {
    if (!values.json)
      console.error("kedge: starting Redis, NATS, redis-rest, the indexer, two agents and the gateway …");
    const starting = new Plane(children, folder, ports, values.profile).start();
    starting.catch(() => undefined);
    const running = await Promise.race([starting, over]);
    if (running !== undefined) {
      console.log(values.json ? JSON.stringify(running) : banner(running));
      await over;
    }
  } finally {
    await children.end();
    rmSync(folder, { recursive: true, force: true });
  }
}

// Not to wait for what an interrupted start still waits for.
try {
  await main();
  process.exit(0);
} catch (error) {
  console.error(`kedge: ${error instanceof Error ? error.message : String(error)}`);
  process.exit(1);
}
