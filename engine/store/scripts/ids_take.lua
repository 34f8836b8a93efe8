-- Store those ids that are not stored yet.
-- KEYS: as accepted_ids.lua   ARGV: ttl ms, then as accepted_ids.lua   Returns {'OK', what `ids_known` has returned before}.
ids_open(1, 2, tonumber(ARGV[1]))
local stamped, own, stored, rejected = ids_store_all()
if rejected then
  return rejected
end
ids_grow(stored)
return {'OK', stamped, own}
