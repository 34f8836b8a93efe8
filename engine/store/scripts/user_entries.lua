-- Find a user's entries in a part of a stream, or delete them. Idempotent, for any caller.
-- KEYS: stream   ARGV: 'find' or 'drop', id to begin at, entries to look at, then field, value... that an entry of the user has
-- Returns {'OK', id to continue at or '' at the end, entries found}; none when they are deleted.
local entries = redis.call('XRANGE', KEYS[1], ARGV[2], '+', 'COUNT', ARGV[3])
local found = {}
for _, entry in ipairs(entries) do
  local wanted = 0
  for i = 1, #entry[2], 2 do
    for j = 4, #ARGV, 2 do
      if entry[2][i] == ARGV[j] and entry[2][i + 1] == ARGV[j + 1] then
        wanted = wanted + 1
      end
    end
  end
  if wanted == (#ARGV - 3) / 2 then
    if ARGV[1] == 'drop' then
      redis.call('XDEL', KEYS[1], entry[1])
    else
      found[#found + 1] = entry
    end
  end
end
return {'OK', #entries == tonumber(ARGV[3]) and '(' .. entries[#entries][1] or '', found}
