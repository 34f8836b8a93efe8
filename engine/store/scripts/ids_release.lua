-- Delete ids that were stored for timers which were then rejected.
-- KEYS: as accepted_ids.lua   ARGV: ttl ms, then as accepted_ids.lua, each with the value it was stored with
ids_open(1, 2, tonumber(ARGV[1]))
for id = 0, ids_count - 1 do
  local at = 2 + ids_stride * id
  local value, own = ids_find(id)
  if (value and string.sub(value, 5) == ARGV[at + 1]) or (own and own == ARGV[at + 2]) then
    ids_drop(id)
  end
end
return {'OK'}
