/** What every script begins with: commands, the store's clock, leases in ticks, names of groups of slots. */

/** A fixed date that ticks are counted from: 2023-11-14T22:13:20Z. Four bytes of ticks last until 2037. */
export const TICK_BASE_MS = 1_700_000_000_000;
/** Leases are counted in ticks of this length, rounded up. */
export const TICK_MS = 100;

/**
 * `KEYS[1]` is the tag of the script's keys and one letter; all other names are made of the same tag. `ARGV[1]` is the view's time for
 * tests, empty: Redis' own clock. Integers below 10^14 become text without an exponent, which Lua 5.1 only guarantees to that size.
 */
export const BASE = `
local call, sub, byte, char, find, match, concat, floor =
  redis.call, string.sub, string.byte, string.char, string.find, string.match, table.concat, math.floor
local tag = sub(KEYS[1], 1, -2)
local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
local tick = floor((now - ${TICK_BASE_MS}) / ${TICK_MS})
-- The tick from which a lease of ttl ms that begins now is over.
local function leaseEnd(ttl)
  return math.ceil((now - ${TICK_BASE_MS} + ttl) / ${TICK_MS})
end
`;
