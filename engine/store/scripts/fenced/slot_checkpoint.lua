-- Write dirty mailboxes of one slot: stream entries first, then the page; all or nothing.
-- KEYS: slot epoch, slot mark, page, deadlines, looks, floor, held, topics, of all tenants: users, bytes, topics, prefix of the subscribers
--   of a tenant's topics, of the timer partition: prefix of the users' indexes, unpaged, then streams...
-- ARGV: epoch, number, lowest mark expected: of confirmed writes, of all; MAXLEN, now ms, then per stream:
--   mailbox key, page blob or '' for none, trim below, the judge has something to do at ms (0: never, -1: it never had a state),
--   expires at ms (0 without entries), the sweep looks at ms (0: never), removed at (-1, or without a page: delete page and stream, and give
--   out no number up to this one again), subscriptions joined by line feeds, entries to delete joined by spaces, 1 or 0: whether the stored
--   page could be read, entries n, n x (seq, blob)
-- Returns {'OK', mailbox keys whose streams passed a multiple of 64 entries...}: their size is to be measured (stream_trim.lua).
-- mark is "<epoch>-<number>" of the last write. A write contains only what changed since the one it expects, so it must not be applied
-- when that one is missing. One that was not confirmed may be missing without a loss: the journal has what it held.
-- A page whose head is below the stored one is refused, and all pages with it: {'NEWER', mailbox key}. Numbers only grow, so the mailbox in
-- memory is of an older page, and would give out numbers again. A page that could not be read is no measure.
-- Tenants are counted in the same step: by how much this write changes what storage has, so that writing it again changes nothing.
-- A user with a page is counted here; one with timers and no page is in `unpaged`, and counted by `timers_turn.lua`.
local mark = redis.call('GET', KEYS[2]) or ''
local last = tonumber(string.match(mark, '^' .. ARGV[1] .. '%-(%d+)$') or '0')
if last < tonumber(ARGV[3]) then
  return {'LOST', 'the last checkpoint', mark}
elseif last < tonumber(ARGV[4]) then
  return {'BEHIND', 'the beginning of this checkpoint'}
elseif last > tonumber(ARGV[2]) then
  return {'OK'} -- a delayed copy: a newer page is stored
end
local maxlen, now = ARGV[5], tonumber(ARGV[6])
local held_key, topics_key, users_key, bytes_key, tenant_topics_key, subscribers_prefix, timers_prefix, unpaged_key = unpack(KEYS, 7, 14)
local has_topics = redis.call('EXISTS', topics_key) == 1
local more_users, more_bytes = {}, {}

local function add_totals()
  add_to(users_key, more_users)
  add_to(bytes_key, more_bytes)
end

local function count_user(name, by)
  local tenant = tenant_of(name)
  more_users[tenant] = (more_users[tenant] or 0) + by
end

-- A page is written: its user is no longer counted for timers.
local function count_page(name)
  count_user(name, 1 - redis.call('SREM', unpaged_key, name))
end

-- A page is gone: its user is counted for timers, if there are any.
local function count_no_page(name, was_counted)
  local has_timers = redis.call('EXISTS', timers_prefix .. name) == 1
  count_user(name, (has_timers and redis.call('SADD', unpaged_key, name) or 0) - (was_counted and 1 or 0))
end

-- What the page and the stream of a mailbox had taken, and what they take now. Beyond twenty nodes a stream is sampled: a look at a node
-- takes half a microsecond, and the inbox of an active user has a hundred.
local function count_bytes(name, stream, before, after, held, may_hold)
  local holds = 0
  if may_hold and redis.call('XLEN', stream) > 0 then
    holds = redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', '20')
  end
  if holds > 0 and holds ~= held then
    redis.call('HSET', held_key, name, holds)
  elseif holds == 0 and held > 0 then
    redis.call('HDEL', held_key, name)
  end
  local tenant = tenant_of(name)
  more_bytes[tenant] = (more_bytes[tenant] or 0) + after + holds - before - held
end

local function count_topics(name, topics)
  local old = has_topics and redis.call('HGET', topics_key, name) or ''
  if old == topics then
    return
  end
  local tenant = tenant_of(name)
  local subscribers, was, is = subscribers_prefix .. tenant, {}, {}
  for topic in string.gmatch(topics, '[^\n]+') do
    is[topic] = true
  end
  for topic in string.gmatch(old, '[^\n]+') do
    was[topic] = true
    if not is[topic] and redis.call('HINCRBY', subscribers, topic, -1) <= 0 then
      redis.call('HDEL', subscribers, topic)
    end
  end
  for topic in string.gmatch(topics, '[^\n]+') do
    if not was[topic] then
      redis.call('HINCRBY', subscribers, topic, 1)
    end
  end
  if topics == '' then
    redis.call('HDEL', topics_key, name)
  else
    redis.call('HSET', topics_key, name, topics)
    has_topics = true
  end
  local count = redis.call('HLEN', subscribers)
  if count > 0 then
    redis.call('ZADD', tenant_topics_key, count, tenant)
  else
    redis.call('ZREM', tenant_topics_key, tenant)
  end
end

-- The first element of a page, its head: behind version and checksum (`engine.core.model.sealed`) and the header of the array.
local function head_of(page)
  local read, _, head = pcall(cmsgpack.unpack_limit, page, 1, page:byte(6) == 0xdc and 8 or 6)
  return read and type(head) == 'number' and head or 0
end

local stored_bytes, look_at = {}, 7
for i = 15, #KEYS do
  local name, page, readable, count = ARGV[look_at], ARGV[look_at + 1], ARGV[look_at + 9], ARGV[look_at + 10]
  local stored = redis.call('HGET', KEYS[3], name) or ''
  stored_bytes[i] = #stored
  if page ~= '' and stored ~= '' and readable == '1' and head_of(stored) > head_of(page) then
    return {'NEWER', name}
  end
  look_at = look_at + 11 + 2 * count
end

local at = 7
local reply = {'OK'}
for i = 15, #KEYS do
  local stream = KEYS[i]
  local name, page, trim_below, judge_at, expires = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local looks, removed_at, topics = ARGV[at + 5], tonumber(ARGV[at + 6]), ARGV[at + 7]
  local deleted, count = ARGV[at + 8], tonumber(ARGV[at + 10])
  local entry = at + 11
  local before, held = stored_bytes[i], tonumber(redis.call('HGET', held_key, name) or '0')
  if removed_at >= 0 then
    -- The floor first: Redis rejects a script for lack of memory at its first write only.
    if removed_at > tonumber(redis.call('GET', KEYS[6]) or '0') then
      redis.call('SET', KEYS[6], string.format('%.0f', removed_at))
    end
    redis.call('DEL', stream)
    redis.call('HDEL', KEYS[3], name)
    redis.call('ZREM', KEYS[4], name)
    redis.call('ZREM', KEYS[5], name)
  end
  for _ = 1, count do
    -- An id at or below the last one: this spill was written before.
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', maxlen, ARGV[entry] .. '-0', 'm', ARGV[entry + 1])
    if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
      add_totals()
      return redis.error_reply(added.err)
    end
    entry = entry + 2
  end
  if expires > 0 and redis.call('PTTL', stream) < expires - now then
    redis.call('PEXPIREAT', stream, expires)
  end
  if count > 0 then
    local length = redis.call('XLEN', stream)
    if math.floor(length / 64) ~= math.floor((length - count) / 64) then
      reply[#reply + 1] = name
    end
  end
  if page ~= '' then
    redis.call('XTRIM', stream, 'MINID', trim_below .. '-0')
    for seq in string.gmatch(deleted, '%d+') do
      redis.call('XDEL', stream, seq .. '-0')
    end
    redis.call('HSET', KEYS[3], name, page)
    if judge_at == '0' then
      redis.call('ZREM', KEYS[4], name)
    elseif judge_at ~= '-1' then
      redis.call('ZADD', KEYS[4], judge_at, name)
    end
    if looks == '0' then
      redis.call('ZREM', KEYS[5], name)
    else
      redis.call('ZADD', KEYS[5], looks, name)
    end
  end
  if page == '' then
    count_no_page(name, before > 0)
  elseif before == 0 then
    count_page(name)
  end
  count_bytes(name, stream, before, #page, held, held > 0 or count > 0)
  count_topics(name, topics)
  at = entry
end
add_totals()
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
return reply
