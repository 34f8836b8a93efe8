-- Which ids are stored, in the buckets or in a key of their own.
-- KEYS: as accepted_ids.lua, then the key of each id   ARGV: ttl ms, then as accepted_ids.lua
-- Returns {'OK', {index, stamped value, ...}, {index of one with a key of its own, ...}}.
ids_open(1, 2, tonumber(ARGV[1]))
local alone = {}
for id = 0, ids_count - 1 do
  if redis.call('EXISTS', KEYS[3 + id]) == 1 then
    alone[#alone + 1] = id
  end
end
return {'OK', ids_known(), alone}
