-- Remove a group whose publishers get "unavailable", and keep a delayed copy of its append from applying.
-- ARGV behind those of journal.lua: of each slot: its head before the group; then as accepted_ids.lua
-- Returns {"OK"}, {"FENCED", epoch} or {"LOST", what, found}.
local ids = {}
for slot = 1, slot_count do
  local head, expected = heads[slot] or '', ARGV[slot + 3]
  ids[slot] = string.match(expected, '^%d+') .. '-' .. number
  if head ~= expected and head ~= ids[slot] and head ~= ids[slot] .. 'u' then
    return is_past(head, expected) and {'OK'} or unexpected(head, expected)
  end
end
ids_open(2 * slot_count + 1, slot_count + 4, tonumber(ARGV[2]))
local removed = 0
for slot = 1, slot_count do
  removed = removed + redis.call('XDEL', KEYS[slot_count + slot], ids[slot])
  redis.call('SET', KEYS[slot], ids[slot] .. 'u')
end
if removed > 0 then
  for one = 0, ids_count - 1 do
    ids_drop(one)
  end
end
return {'OK'}
