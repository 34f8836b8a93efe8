-- Append one revocation to the log, unless one that covers it is there. An earlier one of the same entry is merged into it.
-- KEYS: log, entries, expiries, state, counts by tenant, ids that are of no use any more
-- ARGV: entry `kind:tenant:name`, tenant, `before` in ms, expiry in ms, entries at most, those of one tenant at most, useless ids kept
-- Every log entry has the id of the one before it (`p`), so a reader notices when storage has lost some. Merged and expired ones
-- therefore stay in the log for a while, or each of them would look like a loss.
-- Returns {'OK'}, or {'FULL', limit, expiry of the oldest in ms}.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now_ms, 'LIMIT', 0, 100)) do
  local id = string.match(redis.call('HGET', KEYS[2], entry) or '', '^[^|]+')
  if id then
    redis.call('RPUSH', KEYS[6], id)
  end
  redis.call('HDEL', KEYS[2], entry)
  redis.call('ZREM', KEYS[3], entry)
  local tenant = string.match(entry, '^[^:]*:([^:]*):')
  if redis.call('HINCRBY', KEYS[5], tenant, -1) < 1 then
    redis.call('HDEL', KEYS[5], tenant)
  end
end
local before, expires = tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('HGET', KEYS[2], ARGV[1])
local id, known_before, known_expires
if known then
  id, known_before, known_expires = string.match(known, '^([^|]+)|(%d+)|(%d+)$')
  known_before, known_expires = tonumber(known_before), tonumber(known_expires)
  if known_before >= before and known_expires >= expires then
    return {'OK'}
  end
  before, expires = math.max(before, known_before), math.max(expires, known_expires)
else
  local full = nil
  if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[5]) then
    full = 'revocations_max'
  elseif tonumber(redis.call('HGET', KEYS[5], ARGV[2]) or '0') >= tonumber(ARGV[6]) then
    full = 'revocations_per_tenant_max'
  end
  if full then
    local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    return {'FULL', full, oldest[2] or '0'}
  end
end
local previous = redis.call('HGET', KEYS[4], 'last') or ''
local last = string.match(previous, '^%d+') or '0'
local position = string.format('%.0f-0', math.max(tonumber(last) + 1, time[1] * 1000000 + time[2]))
local before_text, expires_text = string.format('%.0f', before), string.format('%.0f', expires)
redis.call('XADD', KEYS[1], position, 'p', previous, 'e', ARGV[1], 'b', before_text, 'x', expires_text)
if id then
  redis.call('RPUSH', KEYS[6], id)
else
  redis.call('HINCRBY', KEYS[5], ARGV[2], 1)
end
for _ = 1, redis.call('LLEN', KEYS[6]) - tonumber(ARGV[7]) do
  redis.call('XDEL', KEYS[1], redis.call('LPOP', KEYS[6]))
end
redis.call('HSET', KEYS[2], ARGV[1], position .. '|' .. before_text .. '|' .. expires_text)
redis.call('ZADD', KEYS[3], expires, ARGV[1])
redis.call('HSET', KEYS[4], 'last', position)
return {'OK'}
