-- Trim a stream, oldest entries first; for one that other systems read, note how far, so that they can see that they missed something.
-- Idempotent, for any caller.
-- KEYS: stream, its mark if it has one
-- ARGV: entries at most, bytes at most (0: no limit of these), entries that may exceed them, entries just added
-- Returns {'OK', entries trimmed}.
-- The mark is the id of the first entry that was left. Whole nodes of the stream go, so a few entries more than the limit may stay. The size
-- in bytes is measured when the length passes a multiple of 64 entries: measuring looks at each of its nodes.
local entries_max, bytes_max, count_min, added = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local trimmed, count = 0, redis.call('XLEN', KEYS[1])
if entries_max > 0 and count > entries_max then
  trimmed = redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', entries_max)
  count = count - trimmed
end
if bytes_max > 0 and count >= count_min and math.floor(count / 64) ~= math.floor((count - added) / 64) then
  local bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  while bytes > bytes_max and count > 1 do
    count = math.floor(count * math.max(0.5, math.min(0.95, bytes_max / bytes)))
    trimmed = trimmed + redis.call('XTRIM', KEYS[1], 'MAXLEN', math.max(count, 1))
    bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  end
end
if trimmed > 0 and KEYS[2] then
  redis.call('SET', KEYS[2], redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1])
end
return {'OK', trimmed}
