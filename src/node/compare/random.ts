/** Seeded randomness of the workloads: the same seed and labels give the same numbers on every machine and run. */

/** Uniform in [0, 1). */
export type Random = () => number;

/** A generator of its own for each (seed, labels): sfc32 started from FNV-1a hashes (public-domain algorithms). */
export function seeded(seed: number, ...labels: (string | number)[]): Random {
  const name = [seed, ...labels].join("\u0000");
  let a = fnv1a(name, 0x811c9dc5);
  let b = fnv1a(name, 0x9e3779b9);
  let c = fnv1a(name, 0x85ebca6b);
  let counter = 1;
  const next = (): number => {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return (sum >>> 0) / 4294967296;
  };
  for (let i = 0; i < 12; i++) next();
  return next;
}

function fnv1a(text: string, basis: number): number {
  let hash = basis;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash;
}

/** 0 … n−1 in random order (Fisher-Yates). */
export function permutation(n: number, random: Random): Uint32Array {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    const held = order[i]!;
    order[i] = order[j]!;
    order[j] = held;
  }
  return order;
}

/** Time to the next arrival of a Poisson process with the given mean. */
export function exponential(mean: number, random: Random): number {
  return -mean * Math.log(1 - random());
}
