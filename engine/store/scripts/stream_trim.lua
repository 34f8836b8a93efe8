-- Trim streams to about so many bytes, oldest entries first. Idempotent, for any caller.
-- KEYS: streams   ARGV: bytes at most, entries that may exceed them, then for each stream the entries just added
-- Returns {'OK', entries trimmed}.
-- The size of a stream is measured when it passes a multiple of 64 entries: measuring looks at each of its nodes.
local bytes_max, count_min, trimmed = tonumber(ARGV[1]), tonumber(ARGV[2]), 0
for i = 1, #KEYS do
  local count = redis.call('XLEN', KEYS[i])
  if count >= count_min and math.floor(count / 64) ~= math.floor((count - tonumber(ARGV[i + 2])) / 64) then
    local bytes = redis.call('MEMORY', 'USAGE', KEYS[i], 'SAMPLES', '0')
    while bytes > bytes_max and count > 1 do
      count = math.floor(count * math.max(0.5, math.min(0.95, bytes_max / bytes)))
      trimmed = trimmed + redis.call('XTRIM', KEYS[i], 'MAXLEN', math.max(count, 1))
      bytes = redis.call('MEMORY', 'USAGE', KEYS[i], 'SAMPLES', '0')
    end
  end
end
return {'OK', trimmed}
