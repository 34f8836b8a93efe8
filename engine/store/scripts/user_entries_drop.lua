-- Delete a user's entries from a part of a stream. Idempotent, for any caller.
-- KEYS: stream   ARGV: id to begin at, entries to look at, then field, value... that an entry of the user has
-- Returns {'OK', id to continue at, '' at the end}.
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
for _, entry in ipairs(entries) do
  local wanted = 0
  for i = 1, #entry[2], 2 do
    for j = 3, #ARGV, 2 do
      if entry[2][i] == ARGV[j] and entry[2][i + 1] == ARGV[j + 1] then
        wanted = wanted + 1
      end
    end
  end
  if wanted == (#ARGV - 2) / 2 then
    redis.call('XDEL', KEYS[1], entry[1])
  end
end
return {'OK', #entries == tonumber(ARGV[2]) and '(' .. entries[#entries][1] or ''}
