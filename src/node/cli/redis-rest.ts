/** `kedge redis-rest`: Upstash's REST protocol in front of one's own Redis or Valkey. */

import { Command, InvalidArgumentError, Option } from "commander";
import { KedgeError } from "../../errors/index.ts";
import { cannotListen } from "../listen.ts";
import { type RestServer, startRedisRest } from "../redis-rest/index.ts";
import { stopSignal } from "./lifecycle.ts";

interface Flags {
  readonly redis: string;
  readonly cluster?: boolean;
  readonly token?: string;
  readonly readOnlyToken?: string;
  readonly host: string;
  readonly port: number;
  readonly maxBodyBytes: number;
  readonly maxPipelineLength: number;
  readonly redisTimeoutMs: number;
  readonly json?: boolean;
}

const DEFAULT_PORT = 8079;

export function redisRestCommand(): Command {
  const command = new Command("redis-rest").description(
    "Serve Upstash's Redis REST protocol in front of your own Redis or Valkey, single or Cluster.",
  );
  for (const option of OPTIONS) command.addOption(option);
  return command
    .option("--json", "print what runs as one line of JSON")
    .addHelpText("after", HELP)
    .action(run);
}

function option(flags: string, help: string, env: string): Option {
  return new Option(flags, help).env(env);
}

const OPTIONS: readonly Option[] = [
  option(
    "--redis <url[,url…]>",
    "redis:// or rediss:// URL; of a cluster, some nodes",
    "KEDGE_REST_REDIS",
  ).default("redis://127.0.0.1:6379"),
  new Option(
    "--cluster",
    "the addresses are nodes of a Redis or Valkey Cluster (env: KEDGE_REST_CLUSTER=true)",
  ),
  option("--token <token>", "bearer token; may be left out on loopback", "KEDGE_REST_TOKEN"),
  option("--read-only-token <token>", "bearer token for reading only", "KEDGE_REST_READ_ONLY_TOKEN"),
  option("--host <address>", "address to listen on", "KEDGE_REST_HOST").default("127.0.0.1"),
  option("--port <n>", "port to listen on; 0 takes a free one", "KEDGE_REST_PORT")
    .argParser(port)
    .default(DEFAULT_PORT),
  option("--max-body-bytes <n>", "largest request body", "KEDGE_REST_MAX_BODY_BYTES")
    .argParser(whole)
    .default(10 * 1024 * 1024),
  option(
    "--max-pipeline-length <n>",
    "most commands of one pipeline or transaction",
    "KEDGE_REST_MAX_PIPELINE_LENGTH",
  )
    .argParser(whole)
    .default(1_000),
  option(
    "--redis-timeout-ms <ms>",
    "longest silence of Redis before its answers fail",
    "KEDGE_REST_REDIS_TIMEOUT_MS",
  )
    .argParser(whole)
    .default(5_000),
];

const CLUSTER_ENV = "KEDGE_REST_CLUSTER";
/** Kubernetes sets such variables for a service called kedge-rest. */
const SERVICE_LINK = /_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_/;

const HELP = `
Routes: POST / ["GET","k"], /pipeline, /multi-exec; /get/k; /subscribe/<channel>, /psubscribe/<pattern> (events);
        /health and /metrics (no token needed).
A token in the environment shows in no process list. Without a token, only programs of this machine are served, no web pages.

Examples:
  kedge redis-rest --token "$(openssl rand -hex 32)"
  KEDGE_REST_TOKEN=… kedge redis-rest --cluster --redis redis://10.0.0.1:6379,redis://10.0.0.2:6379 --host 0.0.0.0`;

async function run(flags: Flags): Promise<void> {
  checkEnvironment();
  const addresses = flags.redis.split(",").map((address) => address.trim());
  const isCluster = flags.cluster ?? /^(true|1|yes|on)$/i.test(process.env[CLUSTER_ENV] ?? "");
  if (addresses.length > 1 && !isCluster)
    throw new KedgeError("config_invalid", "Several addresses are those of a cluster: add --cluster.");
  const { host, port, maxBodyBytes, maxPipelineLength, redisTimeoutMs } = flags;
  const rest = await startRedisRest({
    redis: isCluster ? { cluster: addresses } : addresses[0]!,
    token: flags.token ?? null,
    ...(flags.readOnlyToken === undefined ? {} : { readOnlyToken: flags.readOnlyToken }),
    host,
    port,
    limits: { maxBodyBytes, maxPipelineLength, redisTimeoutMs },
    log: (level, message) => console.error(`kedge: ${level === "warn" ? "warn: " : ""}${message}`),
  }).catch((thrown: NodeJS.ErrnoException) => {
    throw thrown.syscall === "listen" ? cannotListen(thrown, host, port) : thrown;
  });
  console.log(
    flags.json
      ? JSON.stringify({ url: rest.url, redis: rest.ready })
      : banner(rest, isCluster ? "a Redis Cluster" : "Redis", flags),
  );
  await stopSignal();
  await rest.close();
}

function banner(rest: RestServer, what: string, flags: Flags): string {
  const state = rest.ready ? "" : ", which does not answer yet";
  const access = flags.token === undefined ? "; no token: this machine only" : "";
  return `kedge: redis-rest on ${rest.url}, in front of ${what}${state}${access}`;
}

/** A name that is almost right would leave the default in force, be it that of the token. */
function checkEnvironment(): void {
  const known = new Set([...OPTIONS.flatMap(({ envVar }) => envVar ?? []), CLUSTER_ENV]);
  const unknown = Object.keys(process.env).filter(
    (name) => name.startsWith("KEDGE_REST_") && !known.has(name) && !SERVICE_LINK.test(name),
  );
  if (unknown.length > 0)
    throw new KedgeError(
      "config_invalid",
      `${unknown.join(", ")}: unknown; there are ${[...known].join(", ")}.`,
    );
}

function whole(text: string): number {
  if (!/^[1-9]\d{0,9}$/.test(text)) throw new InvalidArgumentError("A whole number above 0 is expected.");
  return Number(text);
}

function port(text: string): number {
  // Kubernetes' variable for a service called kedge-rest.
  if (/^(tcp|udp|sctp):\/\//.test(text)) return DEFAULT_PORT;
  if (!/^\d{1,5}$/.test(text) || Number(text) > 65_535) throw new InvalidArgumentError("A port is expected.");
  return Number(text);
}
