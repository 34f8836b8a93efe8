-- One turn: advance the claim horizons of timer partitions; then of some partitions, one after another, remove fired timers, move postponed
-- ones, apply requests in order, read a page. Idempotent. Writes to all partitions or, when one has another owner, to none.
-- KEYS: of each partition: epoch, due, timer, cancelled, prefix of the users' indexes, collapse keys, young, unpaged; of
--       each partition to be claimed: epoch, claimed; then of all tenants: users, bytes; prefix of the keys of pages; of ids
--       (accepted_ids.lua): state, prefix of the buckets
-- ARGV: epoch, now, forget-at, timers per user, users per tenant or 0, bytes a timer takes beside its record, how long ids are remembered in
--       ms, number of partitions to be claimed, claim-until; then of each partition: claimed-before, number of fired, number of moved,
--       number of requests, 1 with a page,
--       fired: (sid, mailbox key or '' where its record cannot be read, hash of its effect)...
--       moved: (sid, due, mailbox key)...
--       requests: (kind, sid, tenant or mailbox key, x, y, z)...
--         'S' schedule: mailbox key, due, packed timer, collapse key or ''; and four more: the rest of the key of the user's page, hash of its effect,
--             hash and packed value of the caller's id, both '' without one. The id and the timer are stored in this step, or neither is
--         'I' inspect: tenant    'C' cancel: tenant    'M' move: tenant, due; z of each is the hash of its effect
--         'L' list: sid is the collapse key or '', mailbox key, limit, bytes, '<due> <sid>' of the timer before the first one or ''
--         'A' cancel all: sid is the collapse key or '', mailbox key, scheduled ids to keep joined by spaces
--       page: after-ms, after-sid, until-ms, limit, bytes
-- Returns {'OK', the lowest claimed-until or 0, of each partition {timers in it, replies, page, more, moved, young}...}; times are ms.
--   reply: {status} or {status, due, packed} or {'list', more, sid, due, packed, ...} or {'all', number cancelled, number spared}
--   page: sid, due, packed (false where it is missing), ...
--   moved: 1, or 0 for a timer that does not exist; shorter than the request where Redis rejected a write
--   young: those of these sids that are due up to claimed-before and were stored or moved under this epoch
-- Tenants are counted in the same step, by what this turn adds and removes, so that a repeated turn changes nothing. A user with a page is
-- counted by `slot_checkpoint.lua`; one with timers and no page is in `unpaged`, and counted here.
local KEYS_OF_ONE, KEYS_OF_CLAIM, KEYS_OF_ALL = 8, 2, 5
local SCHEDULED_MAX = 100 -- timers stored by one command: their records are among its arguments
local STORED = {'stored'}
local FIRED = string.rep('\0', 9) -- a packed result without digest and number, under the id of an effect that no shard has stored
local users_key, bytes_key, pages_prefix, ids_state, ids_buckets_prefix = unpack(KEYS, #KEYS - KEYS_OF_ALL + 1)
local claims_at, claims_until = #KEYS - KEYS_OF_ALL - KEYS_OF_CLAIM * ARGV[8] + 1, tonumber(ARGV[9])
for at = 1, claims_at - 1, KEYS_OF_ONE do
  rejected = rejected or rejection(KEYS[at])
end
for at = claims_at, #KEYS - KEYS_OF_ALL, KEYS_OF_CLAIM do
  rejected = rejected or rejection(KEYS[at])
end
if rejected then
  return rejected
end
local now, forget_at, user_max, users_max, timer_bytes = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local more_bytes, more_users = {}, {}

-- Of the partition whose turn it is:
local due_key, timer_key, cancelled_key, user_prefix, collapse_key, young_key, unpaged_key
local claimed_before
local exist -- tombstones by their key: whether there are any, as of the first time it is asked
local young -- what `mark_young` and `note_young` found
local new_users -- tenant -> keys of users who have their first timer, and no page
local have_fewer -- mailbox keys of which timers were removed

-- The mailbox key in a packed timer, nil when it cannot be decoded. A timer is an array of at most 15 elements, first the scheduled id
-- and the key; the rest is not decoded (cmsgpack cannot read binary fields).
local function owner_of(packed)
  local header = packed:byte(6) -- behind version and checksum (`engine.core.model.sealed`)
  if not header or header < 0x92 or header > 0x9f then
    return nil
  end
  local read, _, _, key = pcall(cmsgpack.unpack_limit, packed, 2, 6)
  return read and type(key) == 'string' and key or nil
end

local buckets_open = false

local function open_buckets()
  if not buckets_open then
    buckets_open = true
    ids_open_buckets(ids_state, ids_buckets_prefix, tonumber(ARGV[7]))
  end
end

-- Whether there are tombstones of this kind at all.
local function has(tombs)
  if exist[tombs] == nil then
    exist[tombs] = redis.call('EXISTS', tombs) == 1
  end
  return exist[tombs]
end

-- Delete `count` expired tombstones, twice as many as were added; the key expires with the last of them.
local function expire_tombstones(tombs, count)
  local old = redis.call('ZRANGEBYSCORE', tombs, '-inf', now, 'LIMIT', 0, count)
  for from = 1, #old, 1000 do
    redis.call('ZREM', tombs, unpack(old, from, math.min(from + 999, #old)))
  end
  redis.call('PEXPIRE', tombs, string.format('%.0f', redis.call('ZRANGE', tombs, -1, -1, 'WITHSCORES')[2] - now))
end

-- Store a tombstone of a cancelled timer. It lasts as long as the id of the caller, whose time begins when the timer is due.
local function add_tombstone(tombs, tenant, sid, due)
  redis.call('ZADD', tombs, string.format('%.0f', math.max(forget_at, due + ARGV[7])), tenant .. ':' .. sid)
  exist[tombs] = true
  expire_tombstones(tombs, 2)
end

local function fate_of(tenant, sid, hash)
  open_buckets()
  local fired = redis.call('HGET', ids_bucket(hash), hash)
  if fired and ids_live(fired) then
    return 'fired'
  elseif has(cancelled_key) and redis.call('ZSCORE', cancelled_key, tenant .. ':' .. sid) then
    return 'cancelled'
  end
  return 'absent'
end

-- Why Redis rejected a write, nil where it did not. A server that was demoted fails the whole turn: nothing of it was written, and only an
-- error closes the connection to that server.
local function refusal(written)
  local failure = type(written) == 'table' and written.err or nil
  if failure and string.find(failure, 'READONLY', 1, true) then
    redis.call('PERSIST', users_key) -- raises the error
  end
  return failure
end

-- Advance a claim horizon: timers due up to it may be sent to shards. It never goes back. Returns the horizon; out of memory leaves
-- it unchanged.
local function claim(claimed_key, until_ms)
  local claimed = tonumber(redis.call('GET', claimed_key) or '0')
  if until_ms > claimed then
    if not refusal(redis.pcall('SET', claimed_key, string.format('%.0f', until_ms))) then
      return until_ms
    end
  end
  return claimed
end

-- Mark a timer as stored or moved under this epoch: no earlier one can have sent it. Marks expire when the clock reaches the horizon.
local function mark_young(sid, due)
  if tonumber(due) <= claimed_before and claimed_before > tonumber(now) then
    redis.call('HSET', young_key, sid, '')
    redis.call('PEXPIRE', young_key, string.format('%.0f', claimed_before - now))
    young[#young + 1] = sid
  end
end

-- Whether an earlier incarnation may have sent it to a shard.
local function is_claimed(sid, due)
  return tonumber(due) <= claimed_before and redis.call('HEXISTS', young_key, sid) == 0
end

local function note_young(sid, due)
  if tonumber(due) <= claimed_before and not is_claimed(sid, due) then
    young[#young + 1] = sid
  end
end

local function remove(sid, key, size)
  if redis.call('HDEL', timer_key, sid) == 1 then
    local tenant = tenant_of(key)
    more_bytes[tenant] = (more_bytes[tenant] or 0) - size - timer_bytes
  end
  have_fewer[key] = true
  redis.call('HDEL', collapse_key, sid)
  redis.call('ZREM', due_key, sid)
  redis.call('ZREM', user_prefix .. key, sid)
end

local function is_of(sid, collapse)
  return collapse == '' or redis.call('HGET', collapse_key, sid) == collapse
end

-- How many users a tenant has, with those that this turn has counted so far.
local function users_of(tenant)
  return tonumber(redis.call('ZSCORE', users_key, tenant) or '0') + (more_users[tenant] or 0) + #(new_users[tenant] or {})
end

-- What is stored under a caller's id, if it is something else than this value. Without an id: nothing.
local function other_of(id, value)
  if id == '' then
    return nil
  end
  open_buckets()
  local found = redis.call('HGET', ids_bucket(id), id)
  return found and ids_live(found) and string.sub(found, 5) ~= value and string.sub(found, 5) or nil
end

-- Store the caller's id of a timer. Its time begins when the timer is due: the stamp is that second, or now. Returns an error of Redis.
local function keep_id(id, value, due)
  if id == '' then
    return nil
  end
  open_buckets()
  local failure = refusal(redis.pcall('HSET', ids_bucket(id), id, ids_stamp_of(math.max(ids_now_s, math.ceil(due / 1000))) .. value))
  if failure then
    return failure
  end
  ids_grow_at(id)
end

-- Store some timers, whose requests begin at ARGV[first], with one command for each user's index and the rest in bulk; no two have the same
-- sid, or the same id. Returns a reply for each.
local function store_all(first, sids)
  local there = redis.call('HMGET', timer_key, unpack(sids))
  local replies, stored, indexes, records, dues, present, users = {}, {}, {}, {}, {}, {}, {}
  for i = 1, #sids do
    local sid = sids[i]
    local _, _, key, due, packed, _, page, hash, id, value = unpack(ARGV, first + 10 * i - 10, first + 10 * i - 1)
    local other = other_of(id, value)
    if other then
      replies[i] = {'known', other}
    elseif there[i] then
      local present_due = redis.call('ZSCORE', due_key, sid)
      note_young(sid, present_due or 0)
      local failed = keep_id(id, value, present_due or due)
      replies[i] = failed and {'refused', failed} or {'present', present_due, there[i]}
    else
      local fate, index = fate_of(tenant_of(key), sid, hash), user_prefix .. key
      local count = present[index] or redis.call('ZCARD', index)
      -- The first timer of a user without a page; keys with a line feed stand for the subscribers of a topic, or for everyone.
      local new_of = count == 0 and not string.find(key, '\n', 1, true) and redis.call('HEXISTS', pages_prefix .. page, key) == 0 and tenant_of(key)
      if fate ~= 'absent' then
        replies[i] = {fate}
      elseif count >= user_max then
        replies[i] = {'limit'}
      elseif new_of and users_max ~= '0' and users_of(new_of) + #(users[new_of] or {}) >= tonumber(users_max) then
        replies[i] = {'users'}
      else
        if new_of then
          users[new_of] = users[new_of] or {}
          table.insert(users[new_of], key)
        end
        present[index] = count + 1
        local n = #stored + 1
        stored[n], indexes[n] = i, index
        records[2 * n - 1], records[2 * n] = sid, packed
        dues[2 * n - 1], dues[2 * n] = due, sid
      end
    end
  end
  if #stored == 0 then
    return replies
  end
  -- Out of memory is raised at a script's first write only: this one, so rejected timers leave nothing behind.
  local failure = refusal(redis.pcall('HSET', timer_key, unpack(records)))
  if failure then
    for n = 1, #stored do
      replies[stored[n]] = {'refused', failure}
    end
    return replies
  end
  redis.call('ZADD', due_key, unpack(dues))
  for n = 1, #stored do
    local i, due, sid = stored[n], dues[2 * n - 1], dues[2 * n]
    local tenant, collapse = tenant_of(ARGV[first + 10 * i - 8]), ARGV[first + 10 * i - 5]
    redis.call('ZADD', indexes[n], due, sid)
    more_bytes[tenant] = (more_bytes[tenant] or 0) + #records[2 * n] + timer_bytes
    if collapse ~= '' then
      redis.call('HSET', collapse_key, sid, collapse)
    end
    mark_young(sid, due)
    keep_id(ARGV[first + 10 * i - 2], ARGV[first + 10 * i - 1], due)
    replies[i] = STORED
  end
  for tenant, keys in pairs(users) do
    new_users[tenant] = new_users[tenant] or {}
    for n = 1, #keys do
      table.insert(new_users[tenant], keys[n])
    end
  end
  return replies
end

-- Apply requests to schedule as long as one follows the other. Returns where the next request begins.
local function schedule_all(at, replies, requests)
  while #replies < requests and ARGV[at] == 'S' do
    local first, sids, seen = at, {}, {}
    while #replies + #sids < requests and ARGV[at] == 'S' and not (seen[ARGV[at + 1]] or seen[ARGV[at + 8]]) and #sids < SCHEDULED_MAX do
      sids[#sids + 1] = ARGV[at + 1]
      seen[ARGV[at + 1]] = true
      seen[ARGV[at + 8]] = ARGV[at + 8] ~= ''
      at = at + 10
    end
    for _, reply in ipairs(store_all(first, sids)) do
      replies[#replies + 1] = reply
    end
  end
  return at
end

-- Inspect, move or cancel one timer of a tenant.
local function decide(kind, sid, tenant, new_due, hash)
  local packed = redis.call('HGET', timer_key, sid)
  if not packed then
    return {fate_of(tenant, sid, hash)}
  end
  local key, due = owner_of(packed), redis.call('ZSCORE', due_key, sid)
  if not key or not due then
    return {'unreadable'}
  elseif tenant_of(key) ~= tenant then
    return {'absent'}
  elseif is_claimed(sid, due) then
    return {'fired'}
  elseif kind == 'C' then
    remove(sid, key, #packed)
    add_tombstone(cancelled_key, tenant, sid, due)
  elseif kind == 'M' then
    local failure = refusal(redis.pcall('ZADD', due_key, new_due, sid))
    if failure then
      return {'refused', failure}
    end
    redis.call('ZADD', user_prefix .. key, new_due, sid)
    mark_young(sid, new_due)
    due = new_due
  end
  return {'done', due, packed}
end

-- Byte order, as in sorted sets; Lua's string comparison depends on the server's locale.
local function at_or_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then
      return x < y
    end
  end
  return #a <= #b
end

-- Rank of the first timer of an index after (after_ms, after_sid): by time, then by bisection among those of the same time.
local function rank_behind(index, after_ms, after_sid)
  local low = redis.call('ZCOUNT', index, '-inf', '(' .. after_ms)
  local high = low + redis.call('ZCOUNT', index, after_ms, after_ms)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if at_or_before(redis.call('ZRANGE', index, middle, middle)[1], after_sid) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function list(collapse, key, limit, bytes, after)
  local after_ms, after_sid = string.match(after, '^(%d+) (.+)$')
  local first = after_ms and rank_behind(user_prefix .. key, after_ms, after_sid) or 0
  local found = redis.call('ZRANGE', user_prefix .. key, first, collapse == '' and first + limit or -1, 'WITHSCORES')
  local reply = {'list', 0}
  for i = 1, #found, 2 do
    local wanted = is_of(found[i], collapse)
    if wanted and ((#reply - 2) / 3 >= limit or bytes <= 0) then
      reply[2] = 1
      break
    end
    local packed = wanted and redis.call('HGET', timer_key, found[i])
    if not wanted then
      -- of another collapse key
    elseif packed then
      bytes = bytes - #packed
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = found[i], found[i + 1], packed
    else -- it could not be decoded when it fired or was quarantined, so it was not removed from its owner's index
      redis.call('ZREM', user_prefix .. key, found[i])
      have_fewer[key] = true
    end
  end
  return reply
end

-- Cancel all timers of a user, at most timers-per-user; atomic, so that timers scheduled later are not affected. Those that may have been
-- sent to a shard are spared.
local function cancel_all(collapse, key, kept_sids)
  local kept = {}
  for sid in string.gmatch(kept_sids, '%S+') do
    kept[sid] = true
  end
  local tenant, count, spared = tenant_of(key), 0, 0
  local found = redis.call('ZRANGE', user_prefix .. key, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local sid = found[i]
    if not is_of(sid, collapse) then
      -- of another collapse key
    elseif (is_claimed(sid, found[i + 1]) or kept[sid]) and redis.call('HEXISTS', timer_key, sid) == 1 then
      spared = spared + 1
    else
      remove(sid, key, redis.call('HSTRLEN', timer_key, sid))
      add_tombstone(cancelled_key, tenant, sid, found[i + 1])
      count = count + 1
    end
  end
  return {'all', count, spared}
end

local function read_page(after_ms, after_sid, until_ms, limit, bytes)
  local first = rank_behind(due_key, after_ms, after_sid)
  local found = redis.call('ZRANGE', due_key, first, first + limit - 1, 'WITHSCORES')
  local page = {}
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) > until_ms then
      return page, 0
    elseif bytes <= 0 then
      return page, 1
    end
    local packed = redis.call('HGET', timer_key, found[i])
    page[#page + 1], page[#page + 2], page[#page + 3] = found[i], found[i + 1], packed
    note_young(found[i], found[i + 1])
    bytes = bytes - (packed and #packed or 0)
  end
  return page, #found == 2 * limit and 1 or 0
end

-- Remove fired timers: one command per timer for its user's index, the rest in bulk. Records are read a few at a time, as they have the
-- bodies of messages.
local function remove_fired(first, count)
  local gone, effects = {}, {}
  for from = first, first + 3 * count - 3, 150 do
    local sids = {}
    for at = from, math.min(from + 147, first + 3 * count - 3), 3 do
      sids[#sids + 1] = ARGV[at]
    end
    local records = redis.call('HMGET', timer_key, unpack(sids))
    for i = 1, #sids do
      local sid, key, hash, packed = sids[i], ARGV[from + 3 * i - 2], ARGV[from + 3 * i - 1], records[i]
      if packed then
        redis.call('ZREM', user_prefix .. key, sid)
        if key ~= '' then -- else it stays counted: nobody knows for whom
          local tenant = tenant_of(key)
          more_bytes[tenant] = (more_bytes[tenant] or 0) - #packed - timer_bytes
          have_fewer[key] = true
        end
        gone[#gone + 1] = sid
        effects[#effects + 1] = hash
      end
    end
  end
  for from = 1, #gone, 1000 do
    local to = math.min(from + 999, #gone)
    redis.call('HDEL', timer_key, unpack(gone, from, to))
    redis.call('ZREM', due_key, unpack(gone, from, to))
    redis.call('HDEL', collapse_key, unpack(gone, from, to))
  end
  if #gone > 0 then
    open_buckets()
    local value = ids_stamp .. FIRED
    for i = 1, #effects do
      if redis.call('HSETNX', ids_bucket(effects[i]), effects[i], value) == 1 then
        ids_grow_at(effects[i])
      end
    end
  end
end

-- Move postponed timers to their new due times.
local function move_again(first, count)
  local moved = {}
  for at = first, first + 3 * count - 3, 3 do
    local sid, due, key = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local there = redis.call('HEXISTS', timer_key, sid)
    if there == 1 then
      if refusal(redis.pcall('ZADD', due_key, due, sid)) then
        return moved
      end
      redis.call('ZADD', user_prefix .. key, due, sid)
      mark_young(sid, due)
    end
    moved[#moved + 1] = there
  end
  return moved
end

-- Count users who have their first timer, and no longer those who have had their last; whoever has a page is not in `unpaged`.
local function count_users()
  for tenant, keys in pairs(new_users) do
    for from = 1, #keys, 1000 do
      local added = redis.call('SADD', unpaged_key, unpack(keys, from, math.min(from + 999, #keys)))
      more_users[tenant] = (more_users[tenant] or 0) + added
    end
  end
  local keys, indexes = {}, {}
  for key in pairs(have_fewer) do
    keys[#keys + 1] = key
    indexes[#indexes + 1] = user_prefix .. key
  end
  for from = 1, #keys, 1000 do
    local to, gone = math.min(from + 999, #keys), {}
    local left = redis.call('EXISTS', unpack(indexes, from, to)) -- of all, mostly, or of none
    for i = from, left <= to - from and to or 0 do
      if left == 0 or redis.call('EXISTS', indexes[i]) == 0 then
        local tenant = tenant_of(keys[i])
        gone[tenant] = gone[tenant] or {}
        table.insert(gone[tenant], keys[i])
      end
    end
    for tenant, names in pairs(gone) do
      more_users[tenant] = (more_users[tenant] or 0) - redis.call('SREM', unpaged_key, unpack(names))
    end
  end
end

-- The turn of one partition, whose arguments begin at `at`. Returns its reply, and where its arguments end.
local function turn(at)
  local fired, again, requests = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local has_page = ARGV[at + 4] == '1'
  claimed_before = tonumber(ARGV[at])
  exist, young, new_users, have_fewer = {}, {}, {}, {}
  at = at + 5
  remove_fired(at, fired)
  at = at + 3 * fired
  local moved = move_again(at, again)
  at = at + 3 * again

  local replies = {}
  while #replies < requests do
    local kind, sid, whose, x, y, z = unpack(ARGV, at, at + 5)
    if kind == 'S' then
      at = schedule_all(at, replies, requests)
    else
      if kind == 'L' then
        replies[#replies + 1] = list(sid, whose, tonumber(x), tonumber(y), z)
      elseif kind == 'A' then
        replies[#replies + 1] = cancel_all(sid, whose, x)
      else
        replies[#replies + 1] = decide(kind, sid, whose, x, z)
      end
      at = at + 6
    end
  end
  count_users()

  local page, more = {}, 0
  if has_page then
    page, more = read_page(ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
    at = at + 5
  end
  return {redis.call('ZCARD', due_key), replies, page, more, moved, young}, at
end

local answer, next_at = {'OK', 0}, 10
for at = claims_at, #KEYS - KEYS_OF_ALL, KEYS_OF_CLAIM do -- before anything is written, so that lack of memory refuses it
  local claimed = claim(KEYS[at + 1], claims_until)
  answer[2] = at == claims_at and claimed or math.min(answer[2], claimed)
end
for at = 1, claims_at - 1, KEYS_OF_ONE do
  due_key, timer_key, cancelled_key, user_prefix, collapse_key, young_key, unpaged_key = unpack(KEYS, at + 1, at + 7)
  answer[#answer + 1], next_at = turn(next_at)
end
add_to(users_key, more_users)
add_to(bytes_key, more_bytes)
return answer
