-- Which ids are stored, in the buckets or in a key of their own.
-- KEYS: as accepted_ids.lua, then the key of each id   ARGV: ttl ms, then as accepted_ids.lua   Returns {'OK', {index, ...}}.
ids_open(1, 2, tonumber(ARGV[1]))
local found, known = {}, ids_known()
for at = 1, #known, 2 do
  found[#found + 1] = known[at]
end
for id = 0, ids_count - 1 do
  if redis.call('EXISTS', KEYS[3 + id]) == 1 then
    found[#found + 1] = id
  end
end
return {'OK', found}
