-- Trim a stream to about so many bytes, oldest entries first. Idempotent, for any caller.
-- KEYS: stream   ARGV: bytes at most, entries that may exceed them
-- Returns {'OK', entries trimmed}.
-- It is to be called seldom (fenced/slot_checkpoint.lua): measuring looks at each node of the stream.
local bytes_max, count, trimmed = tonumber(ARGV[1]), redis.call('XLEN', KEYS[1]), 0
if count >= tonumber(ARGV[2]) then
  local bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  while bytes > bytes_max and count > 1 do
    count = math.floor(count * math.max(0.5, math.min(0.95, bytes_max / bytes)))
    trimmed = trimmed + redis.call('XTRIM', KEYS[1], 'MAXLEN', math.max(count, 1))
    bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  end
end
return {'OK', trimmed}
