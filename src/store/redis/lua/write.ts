/** Index writes: batches' ops, snapshots' chunks, predictions. */

import { BASE, TICK_MS } from "./base.ts";
import { CELLS } from "./cells.ts";

/** Fields of a bucket looked at per key written; dead ones go, so that at most every third of a bucket's entries is dead for long. */
const SAMPLED = 3;

/**
 * Entries lie in 4,096 hashes, by the first two characters of the key: small hashes cost a fraction of what keys of their own would.
 */
export const WRITE = `
local function storeKeys(slot, parent, keys, tokens, horizon)
  local ends = leaseEnd(horizon)
  if parent ~= '' then
    -- A child never outlives its parent; below a parent that is not held nothing can be held.
    local entry = call('HGET', tag .. 'e' .. sub(parent, 1, 2), sub(parent, 3))
    local at = entry and cellOf(entry, slot, CONFIRMED)
    if not at then return end
    local parents = u32(entry, at + 5)
    if parents <= tick then return end
    if parents < ends then ends = parents end
  end
  local packed, keep = pack(ends), 2 * horizon
  for i = 0, #keys / 11 - 1 do
    local bucket, field = tag .. 'e' .. sub(keys, i * 11 + 1, i * 11 + 2), sub(keys, i * 11 + 3, i * 11 + 11)
    local entry = call('HGET', bucket, field)
    call('HSET', bucket, field, put(entry, slot, ends, packed, sub(tokens, i * 4 + 1, i * 4 + 4), CONFIRMED))
    call('PEXPIRE', bucket, keep)
    if not entry then
      local sample = call('HRANDFIELD', bucket, ${SAMPLED}, 'WITHVALUES')
      for j = 2, #sample, 2 do
        if u32(sample[j], 5) <= tick then call('HDEL', bucket, sample[j - 1]) end
      end
    end
  end
end

local function removeKeys(slot, keys)
  for i = 0, #keys / 11 - 1 do
    local bucket, field = tag .. 'e' .. sub(keys, i * 11 + 1, i * 11 + 2), sub(keys, i * 11 + 3, i * 11 + 11)
    local entry = call('HGET', bucket, field)
    if entry then
      local kept = living(entry, CONFIRMED)
      local at = kept and cellOf(kept, slot, CONFIRMED)
      if at then kept = sub(kept, 1, at - 1) .. sub(kept, at + CONFIRMED) end
      if not kept or #kept == HEAD then
        call('HDEL', bucket, field)
      elseif kept ~= entry then
        call('HSET', bucket, field, kept)
      end
    end
  end
end

-- Applies count ops of 4 arguments each (what and tier, parent, keys, tokens); returns where the arguments after them begin.
local function applyOps(group, at, count, horizon)
  for _ = 1, count do
    local slot = group .. sub(ARGV[at], 2, 2)
    if sub(ARGV[at], 1, 1) == 's' then
      storeKeys(slot, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], horizon)
    else
      removeKeys(slot, ARGV[at + 2])
    end
    at = at + 4
  end
  return at
end
`;

/**
 * Predictions are keys of their own, for they live short. A later one never shortens an earlier one, and the newest tokens per key win.
 *
 * All boundaries are written, with one SET each, but few are read, since what reaches Lua costs time by its length: between two boundaries
 * with the same text all others have it too. For whoever predicts a boundary predicts all before it, so that a slot's last prediction at
 * both was its last between them. So three MGETs, with ever smaller steps, look only where neighbours differ.
 */
export const PREDICT = `
local function entriesOf(names)
  local entries, wanted, count = {}, {}, #names
  local function fetch()
    if #wanted == 0 then return end
    local asked = {}
    for at, i in ipairs(wanted) do asked[at] = names[i] end
    local texts = call('MGET', unpack(asked))
    for at, i in ipairs(wanted) do entries[i] = texts[at] end
  end
  for i = 1, count, 16 do wanted[#wanted + 1] = i end
  if count % 16 ~= 1 then wanted[#wanted + 1] = count end
  fetch()
  for _, step in ipairs({ 4, 1 }) do
    local low = 1
    wanted = {}
    for high = 2, count do
      if entries[high] ~= nil then
        if entries[high] ~= entries[low] then
          for i = low + step, high - 1, step do wanted[#wanted + 1] = i end
        end
        low = high
      end
    end
    fetch()
  end
  for i = 2, count do
    if entries[i] == nil then entries[i] = entries[i - 1] end
  end
  return entries
end

local function predict(group, ttl, keys, rate)
  local ends = leaseEnd(ttl)
  if ends <= tick or keys == '' then return end
  local slot, packed, names, made, lives = group .. '0', pack(ends), {}, {}, {}
  for i = 1, #keys / 11 do names[i] = tag .. 'p' .. sub(keys, i * 11 - 10, i * 11) end
  for i, before in ipairs(entriesOf(names)) do
    if not made[before] then
      local entry = put(before, slot, ends, packed, rate, PREDICTED)
      made[before], lives[before] = entry, (u32(entry, 5) - tick) * ${TICK_MS}
    end
    call('SET', names[i], made[before], 'PX', lives[before])
  end
end
`;

/** A prediction in one shard. ARGV: now, group, ttl ms, keys at the boundaries, tokens per key and stamp. */
export const PREDICT_SCRIPT = `${BASE}${CELLS}${PREDICT}
if call('HEXISTS', tag .. 'w', ARGV[2]) == 1 then predict(ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]) end
return ''
`;

/** A part of a snapshot, under a group that no reader knows yet. ARGV: now, horizon ms, group, number of ops, ops. */
export const CHUNK_SCRIPT = `${BASE}${CELLS}${WRITE}
applyOps(ARGV[3], 5, tonumber(ARGV[4]), tonumber(ARGV[2]))
return ''
`;

/**
 * Batches in one shard of several, with its own watermark. ARGV: now, horizon ms, number of batches, then of each: group, sequence,
 * number of ops, ops. Reply: one letter per batch (a: applied, d: duplicate, g: gap). A shard that has lost its data finds a gap.
 */
export const APPLY_SHARD_SCRIPT = `${BASE}${CELLS}${WRITE}
local outcomes, at, horizon = {}, 4, tonumber(ARGV[2])
for i = 1, tonumber(ARGV[3]) do
  local group, sequence, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local mark = tonumber(call('HGET', tag .. 'w', group) or nil)
  at = at + 3
  if not mark or sequence > mark + 1 then
    outcomes[i], at = 'g', at + 4 * count
  elseif sequence <= mark then
    outcomes[i], at = 'd', at + 4 * count
  else
    at = applyOps(group, at, count, horizon)
    call('HSET', tag .. 'w', group, sequence)
    outcomes[i] = 'a'
  end
end
return concat(outcomes)
`;
