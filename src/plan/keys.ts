/** Ed25519 keys of plans: read from JWK, JWKS or PKCS #8, named by thumbprint, made anew (RFC 7517, RFC 7638, RFC 8037). */

import {
  type CryptoKey,
  calculateJwkThumbprint,
  exportJWK,
  generateKeyPair,
  importJWK,
  importPKCS8,
  type JWK,
} from "jose";
import { KedgeError } from "../errors/index.ts";

/** The only algorithm; a plan's header must name it. */
export const PLAN_ALGORITHM = "EdDSA";

/** A public key as it is published; `kid` is the RFC 7638 thumbprint (SHA-256, base64url). */
export interface PublicPlanKey {
  readonly kty: "OKP";
  readonly crv: "Ed25519";
  readonly x: string;
  readonly kid: string;
  readonly alg: typeof PLAN_ALGORITHM;
  readonly use: "sig";
}

export interface SigningKeys {
  readonly key: CryptoKey;
  readonly kid: string;
  /** The signing one first. */
  readonly published: readonly PublicPlanKey[];
}

/**
 * A private JWK, a JWKS whose first key is private (the others' public halves are published with it), or PKCS #8 PEM.
 * Errors: `config_invalid`; its message repeats nothing of the text.
 */
export async function readSigningKeys(text: string): Promise<SigningKeys> {
  const jwks = text.trimStart().startsWith("-----") ? [await jwkOfPem(text)] : jwksOf(text);
  const [first] = jwks;
  if (first === undefined || first.d === undefined) {
    throw invalid("The first key is not a private one; make a pair with: kedge plan-key");
  }
  const published = await Promise.all(jwks.map(publicHalf));
  const key = await imported(first);
  return { key, kid: published[0]!.kid, published: unique(published) };
}

/** Public keys by thumbprint. Keys of other kinds are left out. Errors: `config_invalid` if none is left, or if one is private. */
export async function readPublicKeys(text: string): Promise<Map<string, CryptoKey>> {
  const jwks = jwksOf(text).filter(isEd25519);
  if (jwks.some(({ d }) => d !== undefined)) {
    throw invalid(
      "A private key is where public ones belong; agents need the public half of kedge plan-key only",
    );
  }
  if (jwks.length === 0)
    throw invalid("There is no Ed25519 key (kty OKP, crv Ed25519) among the public keys");
  const keys = new Map<string, CryptoKey>();
  for (const jwk of jwks) {
    const half = await publicHalf(jwk);
    keys.set(half.kid, await imported(half));
  }
  return keys;
}

/**
 * A new pair as JWKS texts. With `old` (what a gateway has now, in any form that it reads) its public halves stay published, so that
 * plans which it signed are good until they expire. Errors: `config_invalid` for an unreadable `old`.
 */
export async function newPlanKeys(
  old: string | null = null,
): Promise<{ privateJwks: { keys: JWK[] }; publicJwks: { keys: PublicPlanKey[] } }> {
  const kept = old === null ? [] : (await readSigningKeys(old)).published;
  const { privateKey } = await generateKeyPair(PLAN_ALGORITHM, { crv: "Ed25519", extractable: true });
  const jwk = await exportJWK(privateKey);
  const half = await publicHalf(jwk);
  return {
    privateJwks: { keys: [{ ...half, d: jwk.d! }, ...kept] },
    publicJwks: { keys: [half, ...kept] },
  };
}

async function jwkOfPem(text: string): Promise<JWK> {
  try {
    return await exportJWK(await importPKCS8(text.trim(), PLAN_ALGORITHM, { extractable: true }));
  } catch {
    throw invalid("The PEM is not a PKCS #8 Ed25519 private key (openssl genpkey -algorithm ed25519)");
  }
}

function jwksOf(text: string): JWK[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw invalid("The text is neither JSON (a JWK or JWKS) nor PEM");
  }
  const keys: unknown = isObject(value) && "keys" in value ? value.keys : [value];
  if (!Array.isArray(keys) || !keys.every(isObject)) throw invalid("A JWKS is an object with a list of keys");
  return keys as JWK[];
}

async function publicHalf(jwk: JWK): Promise<PublicPlanKey> {
  if (!isEd25519(jwk)) throw invalid("A key is not Ed25519 (kty OKP, crv Ed25519)");
  const { x } = jwk;
  const kid = await calculateJwkThumbprint({ kty: "OKP", crv: "Ed25519", x });
  return { kty: "OKP", crv: "Ed25519", x, kid, alg: PLAN_ALGORITHM, use: "sig" };
}

async function imported({ x, d }: Pick<JWK, "x" | "d">): Promise<CryptoKey> {
  try {
    const jwk = { kty: "OKP", crv: "Ed25519", x, ...(d !== undefined && { d }) } as JWK;
    return (await importJWK(jwk, PLAN_ALGORITHM)) as CryptoKey;
  } catch {
    throw invalid("A key is damaged");
  }
}

function isEd25519(jwk: JWK): jwk is JWK & { x: string } {
  return jwk.kty === "OKP" && jwk.crv === "Ed25519" && typeof jwk.x === "string";
}

function unique(keys: readonly PublicPlanKey[]): PublicPlanKey[] {
  return [...new Map(keys.map((key) => [key.kid, key])).values()];
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function invalid(reason: string): KedgeError {
  return new KedgeError("config_invalid", `Plan keys: ${reason}.`, { param: "plan" });
}
