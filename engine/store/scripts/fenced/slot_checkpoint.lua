-- Write dirty mailboxes of one slot: stream entries first, then the page; all or nothing.
-- KEYS: slot epoch, slot mark, page, windows, looks, floor, streams...
-- ARGV: epoch, number, lowest mark expected, MAXLEN, now ms, then per stream:
--   mailbox key, page blob or '' for none, trim below, next window closes at ms (0: none is open, -1: it never had one),
--   expires at ms (0 without entries), the sweep looks at ms (0: never), removed at (-1, or: delete page and stream first, and give out
--   no number up to this one again), entries n, n x (seq, blob)
-- Returns {'OK', streams that passed a multiple of 64 entries...}: their size is to be measured (stream_trim.lua).
-- mark is "<epoch>-<number>" of the last write. A write contains only what changed since the one it expects, so it must not be applied
-- when that one is missing.
local mark = redis.call('GET', KEYS[2]) or ''
local last = tonumber(string.match(mark, '^' .. ARGV[1] .. '%-(%d+)$') or '0')
if last < tonumber(ARGV[3]) then
  return {'LOST', 'the last checkpoint', mark}
elseif last > tonumber(ARGV[2]) then
  return {'OK'} -- a delayed copy: a newer page is stored
end
local maxlen, now = ARGV[4], tonumber(ARGV[5])
local at = 6
local reply = {'OK'}
for i = 7, #KEYS do
  local stream = KEYS[i]
  local name, page, trim_below, closes, expires = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local looks, removed_at, count = ARGV[at + 5], tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local entry = at + 8
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
      return redis.error_reply(added.err)
    end
    entry = entry + 2
  end
  if count > 0 then
    if redis.call('PTTL', stream) < expires - now then
      redis.call('PEXPIREAT', stream, expires)
    end
    local length = redis.call('XLEN', stream)
    if math.floor(length / 64) ~= math.floor((length - count) / 64) then
      reply[#reply + 1] = stream
    end
  end
  if page ~= '' then
    redis.call('XTRIM', stream, 'MINID', trim_below .. '-0')
    redis.call('HSET', KEYS[3], name, page)
    if closes == '0' then
      redis.call('ZREM', KEYS[4], name)
    elseif closes ~= '-1' then
      redis.call('ZADD', KEYS[4], closes, name)
    end
    if looks == '0' then
      redis.call('ZREM', KEYS[5], name)
    else
      redis.call('ZADD', KEYS[5], looks, name)
    end
  end
  at = entry
end
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
return reply
