/** Leader leases: one key each, all declared, so that Upstash need not lock the whole database for them. */

/**
 * Upstash runs a script under a lock of the whole database unless it promises to touch declared keys only. Ours make most of their key
 * names themselves, since which keys a bisection visits is known only while it runs: they pay the global lock, and in return a lookup is
 * one billed command and one round trip. Redis and Valkey run all scripts one by one anyway, and refuse the flag.
 */
export const UPSTASH_KEY_LOCKING = "#!lua flags=allow-key-locking\n";

/** KEYS: the lease. ARGV: holder, ttl ms. Reply: 1 if it is held now. */
export const RENEW_SCRIPT = `
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
`;

/** KEYS: the lease. ARGV: holder. */
export const RELEASE_LEASE_SCRIPT = `
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
`;
