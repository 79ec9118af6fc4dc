/** A Worker bundled as a deployment would, run by Miniflare on loopback. */

import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, type Metafile } from "esbuild";
import { Miniflare, type MiniflareOptions } from "miniflare";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..", "..");

const NAME = "kedge-gateway";

export interface WorkerModule {
  readonly name: string;
  readonly type: "esm" | "wasm";
  readonly contents: Uint8Array<ArrayBuffer>;
}

export interface WorkerBundle {
  /** The main module first. */
  readonly modules: readonly WorkerModule[];
  /** What the bundle still imports: modules of the platform. */
  readonly platformImports: readonly string[];
  /** Bundled files, relative to the repository. */
  readonly inputs: readonly string[];
}

/** Bundles an entry, relative to the repository. */
export async function bundleWorker(entry: string): Promise<WorkerBundle> {
  const wasm: WorkerModule[] = [];
  const result = await build({
    absWorkingDir: ROOT,
    entryPoints: [entry],
    bundle: true,
    write: false,
    metafile: true,
    format: "esm",
    target: "es2024",
    platform: "neutral",
    mainFields: ["module", "main"],
    conditions: ["workerd", "worker", "browser"],
    // `crypto`: where a library falls back to Node; it counts as an import of the platform.
    external: ["cloudflare:*", "node:*", "crypto"],
    plugins: [
      {
        name: "compiled wasm",
        setup: ({ onResolve }) => {
          onResolve({ filter: /\.wasm$/ }, ({ path, resolveDir }) => {
            const name = `wasm-${wasm.length}.wasm`;
            wasm.push({ name, type: "wasm", contents: new Uint8Array(readFileSync(join(resolveDir, path))) });
            return { path: `./${name}`, external: true };
          });
        },
      },
    ],
  });
  const main: WorkerModule = {
    name: "index.js",
    type: "esm",
    contents: new Uint8Array(result.outputFiles[0]!.contents),
  };
  return {
    modules: [main, ...wasm],
    platformImports: platformImports(result.metafile),
    inputs: Object.keys(result.metafile.inputs),
  };
}

function platformImports({ outputs }: Metafile): string[] {
  const imports = Object.values(outputs).flatMap((output) => output.imports);
  return [...new Set(imports.filter(({ external }) => external).map(({ path }) => path))].filter(
    (path) => !path.endsWith(".wasm"),
  );
}

export interface RunningWorker {
  readonly url: string;
  /** Process id of its workerd. */
  readonly pid: number;
  /** What the Worker's isolate holds once its garbage has been collected: V8's heap and buffers outside of it. */
  heapBytes(): Promise<number>;
  close(): Promise<void>;
}

/**
 * Starts one Worker with text bindings, and with entries of a key-value binding KEDGE_KV if there are any; compatibility settings are those
 * of wrangler.toml.
 */
export async function runWorker(
  { modules }: WorkerBundle,
  bindings: Readonly<Record<string, string>>,
  entries: Readonly<Record<string, string>> = {},
): Promise<RunningWorker> {
  const toml = readFileSync(join(ROOT, "wrangler.toml"), "utf8");
  const options: MiniflareOptions = {
    cf: false,
    telemetry: { enabled: false },
    host: "127.0.0.1",
    inspectorPort: 0,
    workers: [
      {
        config: {
          name: NAME,
          compatibilityDate: /^compatibility_date = "(.*)"/m.exec(toml)![1]!,
          compatibilityFlags: ["enable_request_signal"],
          manifest: {
            mainModule: modules[0]!.name,
            modules: Object.fromEntries(
              modules.map(({ name, type, contents }) => [
                name,
                { type, contents: type === "esm" ? new TextDecoder().decode(contents) : contents },
              ]),
            ),
          },
          env: {
            ...Object.fromEntries(
              Object.entries(bindings).map(([name, value]) => [name, { type: "text", value }]),
            ),
            ...(Object.keys(entries).length > 0 && { KEDGE_KV: { type: "kv", id: "kedge" } }),
          },
          exports: {},
        },
      },
    ],
  };
  const miniflare = new Miniflare(options);
  const url = await miniflare.ready;
  for (const [key, value] of Object.entries(entries)) {
    const store: unknown = await miniflare.getKVNamespace("KEDGE_KV");
    await (store as { put(key: string, value: string): Promise<void> }).put(key, value);
  }
  const inspector = await miniflare.getInspectorURL();
  return {
    url: url.origin,
    pid: workerdPid(),
    heapBytes: () => heapBytes(new URL(`/core:user:${NAME}`, inspector)),
    close: () => miniflare.dispose(),
  };
}

async function heapBytes(inspector: URL): Promise<number> {
  const socket = new WebSocket(inspector);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  const ask = (id: number, method: string) =>
    new Promise<Readonly<Record<string, number>>>((resolve, reject) => {
      socket.addEventListener("message", ({ data }) => {
        const message = JSON.parse(String(data));
        if (message.id === id) resolve(message.result);
      });
      socket.addEventListener("close", () => reject(new Error("the inspector has gone")));
      socket.send(JSON.stringify({ id, method }));
    });
  // The runtime knows no command to collect garbage, but does so before it takes a snapshot.
  await ask(1, "HeapProfiler.takeHeapSnapshot");
  const { usedSize = 0, backingStorageSize = 0 } = await ask(2, "Runtime.getHeapUsage");
  socket.close();
  return usedSize + backingStorageSize;
}

/** The newest workerd that this process started. */
function workerdPid(): number {
  const children = readFileSync(`/proc/${process.pid}/task/${process.pid}/children`, "utf8")
    .trim()
    .split(" ");
  const workerds = children.filter((pid) => readFileSync(`/proc/${pid}/comm`, "utf8").startsWith("workerd"));
  return Number(workerds.at(-1) ?? Number.NaN);
}
