/** Scripts of the fleet: registrations, load reports, reservations, and their readers (design D4, D6). */

import { SUCCESSOR_SILENT_MS } from "../../../fleet/rules.ts";
import { BASE } from "./base.ts";
import { CELLS } from "./cells.ts";
import { LOOKUP, MAX_PROBES } from "./lookup.ts";
import { READ_ROWS, ROWS } from "./rows.ts";
import { PREDICT, WRITE } from "./write.ts";

/** Lease of a card beyond the horizon; every refresh of a registration that has this card extends it. */
const CARD_MS = 86_400_000;

/** ARGV: now, horizon ms, rank, incarnation, … for all that follow unless they say otherwise. */
const RANK = `
local horizon, id, incarnation = tonumber(ARGV[2]), ARGV[3], ARGV[4]
`;

/**
 * … epoch, first group, model, hash of the card, registration, card (empty: it should be there). Reply: `r` retired; `c` send the card
 * too; `k` known already, group; `n` new, group, and the group that it takes the place of.
 */
export const REGISTER_SCRIPT = `${BASE}${ROWS}${RANK}
local model, registration = ARGV[7], ARGV[8] .. ARGV[9]
local card, cardKey, keep = ARGV[10], tag .. 'k' .. ARGV[8], horizon + ${CARD_MS}
begin(ARGV[5], ARGV[6])
local row = current(id, incarnation)
local former = lifeOf(id)
if not row and refusal(id, incarnation, horizon) == 'r' then
  local successor = former and current(id, former)
  if not successor or now - successor[HEARD] <= ${SUCCESSOR_SILENT_MS} then return { 'r' } end
end
if card ~= '' then
  call('SET', cardKey, card, 'PX', keep)
elseif call('PEXPIRE', cardKey, keep) == 0 then
  return { 'c' }
end
if row then
  row[HEARD] = now
  if row.model ~= model then
    call('HDEL', tag .. 'd' .. row.model, id)
    if call('EXISTS', tag .. 'd' .. row.model) == 0 then call('SREM', tag .. 'm', row.model) end
    call('HSET', tag .. 'i', id, incarnation .. '\\n' .. model)
    call('SADD', tag .. 'm', model)
    row.model = model
  end
  if call('HGET', tag .. 's', id) ~= registration then
    call('HSET', tag .. 's', id, registration)
    row[CHANGED] = nextVersion()
  end
  save(row)
  return { 'k', row[GROUP] }
end
local replaced = ''
call('DEL', retiredKey(id, incarnation))
if former then
  replaced = forget(id, horizon)
  markRetired(id, former, horizon)
end
local group = allot()
row = { group, now, now, 0, 0, 0, 0, 0, '-', '-', '-', '-', 0, 0, 0, 0, nextVersion() }
row.id, row.model = id, model
call('HSET', tag .. 'i', id, incarnation .. '\\n' .. model)
call('HSET', tag .. 's', id, registration)
call('HSET', tag .. 'w', group, 0)
call('SADD', tag .. 'm', model)
save(row)
return { 'n', group, replaced }
`;

/** Reply: the group that is inert now, if there is one. */
export const RETIRE_SCRIPT = `${BASE}${ROWS}${RANK}
local group = current(id, incarnation) and forget(id, horizon) or ''
markRetired(id, incarnation, horizon)
return group
`;

/** … request (empty: predict only), blocks, prefill tokens, reservation ttl ms, prediction ttl ms, keys at the boundaries, tokens per key and stamp. */
export const RESERVE_SCRIPT = `${BASE}${CELLS}${ROWS}${PREDICT}${RANK}
local row = current(id, incarnation)
if not row then return '' end
local request = ARGV[5]
if request ~= '' then
  local early = tag .. 'a' .. id .. ' ' .. request
  local remembered = tonumber(call('GET', early))
  if remembered then call('DEL', early) end
  if not remembered or remembered <= now then
    local ends = now + ARGV[8]
    endReservations(row)
    release(row, request)
    call('HSET', tag .. 'r' .. id, request, ARGV[6] .. ',' .. ARGV[7] .. ',' .. ends)
    call('PEXPIRE', tag .. 'r' .. id, ARGV[8] + horizon)
    row[REQUESTS] = row[REQUESTS] + 1
    row[BLOCKS] = row[BLOCKS] + ARGV[6]
    row[RESERVED] = row[RESERVED] + ARGV[7]
    if row[SOONEST] == 0 or ends < row[SOONEST] then row[SOONEST] = ends end
    save(row)
  end
end
predict(row[GROUP], math.min(tonumber(ARGV[9]), horizon), ARGV[10], ARGV[11])
return ''
`;

/** … request. */
export const RELEASE_SCRIPT = `${BASE}${ROWS}${RANK}
local row = current(id, incarnation)
if row then
  endReservations(row)
  release(row, ARGV[5])
  save(row)
end
return ''
`;

/** How long an admission is remembered whose reservation has not come yet. */
const EARLY_ADMISSION_MS = 60_000;

/**
 * ARGV: now, horizon ms, epoch, first group, heartbeat (1 or 0), number of reports, then of each: rank, incarnation, sequence, active
 * blocks, prefill tokens, running, waiting, published sequence, number of admitted requests, their ids. Reply: a letter for each report
 * (a: applied, r: retired, u: unknown), then the groups that a heartbeat made inert, each after a comma.
 */
export const REPORT_SCRIPT = `${BASE}${ROWS}
local horizon = tonumber(ARGV[2])
local replies, at = {}, 7

local function admit(row, first, last)
  if last < first then return end
  endReservations(row)
  for from = first, last, 1000 do
    local to = math.min(from + 999, last)
    local held = call('HMGET', tag .. 'r' .. row.id, unpack(ARGV, from, to))
    for i = from, to do
      if held[i - from + 1] then subtract(row, held[i - from + 1])
      else call('SET', tag .. 'a' .. row.id .. ' ' .. ARGV[i], now + ${EARLY_ADMISSION_MS}, 'PX', ${EARLY_ADMISSION_MS}) end
    end
    call('HDEL', tag .. 'r' .. row.id, unpack(ARGV, from, to))
  end
end

for i = 1, tonumber(ARGV[6]) do
  local id, incarnation, admitted = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 8])
  local row = current(id, incarnation)
  if row then
    row[HEARD] = now
    admit(row, at + 9, at + 8 + admitted)
    local sequence, published = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 7])
    if sequence > row[SEQUENCE] then
      row[SEQUENCE] = sequence
      for field = 0, 3 do row[ACTIVE + field] = ARGV[at + 3 + field] end
      if published > row[PUBLISHED] then row[PUBLISHED] = published end
      if row[MISSING] == 0 then noteMissing(row) end
    end
    save(row)
    replies[i] = 'a'
  else
    replies[i] = refusal(id, incarnation, horizon)
  end
  at = at + 9 + admitted
end

if ARGV[5] == '1' then
  begin(ARGV[3], ARGV[4])
  call('HSET', tag .. 'c', 'beat', now)
  -- Ranks that were silent for so long that all their leases have ended are forgotten; they may come back.
  for _, model in ipairs(call('SMEMBERS', tag .. 'm')) do
    local all = call('HGETALL', tag .. 'd' .. model)
    for i = 2, #all, 2 do
      local heard = match(all[i], '^[^,]*,(%d+)')
      if now - heard > horizon then replies[#replies + 1] = ',' .. forget(all[i - 1], horizon) end
    end
  end
end
return concat(replies)
`;

/**
 * ARGV: now, model, most rows, keys, boundaries. Reply: `epoch version heartbeat-age number-of-rows`, rows (none if there are more),
 * thresholds, confirmed, predicted, `probes truncated`; without the last three if there is no index under this tag. Where there are rows,
 * the lookup names a group by one digit, its row's place.
 */
const ROWS_ONLY = `
local count = call('HLEN', tag .. 'd' .. ARGV[2])
local rows, spent, places = '', 0, nil
if count > 0 and count <= tonumber(ARGV[3]) then rows, spent, places = readRows(ARGV[2]) end
local reply = { headOf() .. ' ' .. count, rows, call('HGET', tag .. 't', ARGV[2]) or '' }
`;
export const ROWS_SCRIPT = `${BASE}${ROWS}${READ_ROWS}${ROWS_ONLY}
return reply
`;
export const READ_SCRIPT = `${BASE}${CELLS}${LOOKUP}${ROWS}${READ_ROWS}${ROWS_ONLY}
reply[4], reply[5], reply[6] = lookup(ARGV[4], tonumber(ARGV[5]), ${MAX_PROBES} - spent, places)
return reply
`;

/**
 * The whole fleet; registrations only of ranks that changed since a version, cards only those not known. ARGV: now, epoch and version of
 * the reader's copy, hashes of the cards that it knows. Reply: `epoch version heartbeat-age`, numbers of models and registrations, then of
 * each model: name, rows; of each registration: group, time since it registered in ms, hash of its card, itself; then hash and card pairs.
 */
export const ROSTER_SCRIPT = `${BASE}${ROWS}${READ_ROWS}
local head = headOf()
local since = match(head, '^[^ ]*') == ARGV[2] and tonumber(ARGV[3]) or 0
local models = call('SMEMBERS', tag .. 'm')
local reply, ids, ages, groups = { head, #models }, {}, {}, {}
for _, model in ipairs(models) do
  reply[#reply + 1], reply[#reply + 2] = model, (readRows(model))
  local all = call('HGETALL', tag .. 'd' .. model)
  for i = 1, #all, 2 do
    local group, registered, changed = match(all[i + 1], '^([^,]*),[^,]*,([^,]*),.*,(%d+)$')
    if tonumber(changed) > since then
      ids[#ids + 1], groups[#groups + 1], ages[#ages + 1] = all[i], group, now - registered
    end
  end
end
table.insert(reply, 3, #ids)
local asked, hashes = {}, {}
for hash in string.gmatch(ARGV[4], '[^ ]+') do asked[hash] = true end
for first = 1, #ids, 1000 do
  local last = math.min(first + 999, #ids)
  local registrations = call('HMGET', tag .. 's', unpack(ids, first, last))
  for i = first, last do
    local registration = registrations[i - first + 1] or ''
    local hash = sub(registration, 1, 22)
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = groups[i], ages[i], registration
    if not asked[hash] and hash ~= '' then
      asked[hash] = true
      hashes[#hashes + 1] = hash
    end
  end
end
for _, hash in ipairs(hashes) do
  reply[#reply + 1], reply[#reply + 2] = hash, call('GET', tag .. 'k' .. hash) or ''
end
return reply
`;

/**
 * Batches where fleet and index share a tag. ARGV: now, horizon ms, number of batches, then of each: rank, incarnation, sequence, number
 * of ops, ops. Reply: a letter per batch (a: applied, d: duplicate, g: gap, r: retired, u: unknown).
 */
export const APPLY_SCRIPT = `${BASE}${CELLS}${WRITE}${ROWS}
local outcomes, rows, at, horizon = {}, {}, 4, tonumber(ARGV[2])
for i = 1, tonumber(ARGV[3]) do
  local id, incarnation, sequence, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local name = id .. '\\n' .. incarnation
  local row = rows[name] or current(id, incarnation)
  at = at + 4
  if not row then
    outcomes[i], at = refusal(id, incarnation, horizon), at + 4 * count
  else
    rows[name], row[HEARD] = row, now
    if sequence <= row[WATERMARK] then
      outcomes[i], at = 'd', at + 4 * count
    elseif sequence > row[WATERMARK] + 1 then
      outcomes[i], at = 'g', at + 4 * count
    else
      at = applyOps(row[GROUP], at, count, horizon)
      advance(row, sequence)
      outcomes[i] = 'a'
    end
  end
end
for _, row in pairs(rows) do
  call('HSET', tag .. 'w', row[GROUP], row[WATERMARK])
  save(row)
end
return concat(outcomes)
`;

/**
 * Before batches go to several shards. ARGV: now, horizon ms, number of batches, then of each: rank, incarnation. Reply for each: r, u, or
 * group and watermark.
 */
export const CHECK_SCRIPT = `${BASE}${ROWS}
local replies, horizon = {}, tonumber(ARGV[2])
for i = 1, tonumber(ARGV[3]) do
  local id, incarnation = ARGV[2 + 2 * i], ARGV[3 + 2 * i]
  local row = current(id, incarnation)
  if row then
    row[HEARD] = now
    save(row)
    replies[i] = row[GROUP] .. row[WATERMARK]
  else
    replies[i] = refusal(id, incarnation, horizon)
  end
end
return replies
`;

/**
 * After batches went to all shards. ARGV: now, number of batches, then of each: rank, incarnation, group that it was written under, sequence.
 * Reply: a letter for each (a: applied, g: a snapshot without it has taken that group's place meanwhile).
 */
export const ADVANCE_SCRIPT = `${BASE}${ROWS}
local outcomes = {}
for i = 1, tonumber(ARGV[2]) do
  local row, sequence = current(ARGV[4 * i - 1], ARGV[4 * i]), tonumber(ARGV[4 * i + 2])
  outcomes[i] = 'a'
  if row and sequence > row[WATERMARK] then
    if row[GROUP] == ARGV[4 * i + 1] then
      advance(row, sequence)
      save(row)
    else
      outcomes[i] = 'g'
    end
  end
end
return concat(outcomes)
`;

/** Begins a snapshot. … sequence. Reply: r, u, d (older than what is there), or the group to write it under. */
export const SNAPSHOT_BEGIN_SCRIPT = `${BASE}${ROWS}${RANK}
local row = current(id, incarnation)
if not row then return refusal(id, incarnation, horizon) end
row[HEARD] = now
save(row)
if tonumber(ARGV[5]) < row[WATERMARK] then return 'd' end
return allot()
`;

/**
 * Readers see the snapshot from here on, whole. … sequence, group. Reply: r, u or d (the group is given back), or `a` and the group that
 * it takes the place of.
 */
export const SNAPSHOT_END_SCRIPT = `${BASE}${ROWS}${RANK}
local row, sequence, group = current(id, incarnation), tonumber(ARGV[5]), ARGV[6]
-- It was taken before, and the answer was lost.
if row and row[GROUP] == group then return 'a' end
if not row or sequence < row[WATERMARK] or call('ZSCORE', tag .. 'f', group) then
  retireGroup(group, horizon)
  return row and 'd' or refusal(id, incarnation, horizon)
end
local replaced = row[GROUP]
retireGroup(replaced, horizon)
row[GROUP], row[CHANGED] = group, nextVersion()
advance(row, sequence)
save(row)
call('HSET', tag .. 'w', group, sequence)
return 'a' .. replaced
`;

/**
 * A new epoch: the fleet is empty and all its groups inert; the counter of groups, retired lives and thresholds stay. ARGV: now, horizon
 * ms, epoch, first group.
 */
export const RESET_SCRIPT = `${BASE}${ROWS}
begin(ARGV[3], ARGV[4])
for _, model in ipairs(call('SMEMBERS', tag .. 'm')) do
  local ids = call('HKEYS', tag .. 'd' .. model)
  for _, id in ipairs(ids) do forget(id, tonumber(ARGV[2])) end
end
call('DEL', tag .. 'i', tag .. 's', tag .. 'm', tag .. 'w')
call('HSET', tag .. 'c', 'epoch', ARGV[3])
nextVersion()
return ''
`;
