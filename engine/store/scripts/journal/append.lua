-- One group commit: skip a group that was applied, look up and store its ids, append.
-- ARGV behind those of journal.lua: of each slot its head before the group, of each slot its payload; then as accepted_ids.lua
-- Returns {"OK"}, {"FENCED", epoch}, {"LOST", what, found} or {"KNOWN", what `ids_known` returns}.
for slot = 1, slot_count do
  local head, expected = heads[slot] or '', ARGV[slot + 3]
  if slot == 1 and is_past(head, expected) then
    return {'OK'}
  elseif head ~= expected then
    return unexpected(head, expected)
  end
end
ids_open(2 * slot_count + 1, 2 * slot_count + 4, tonumber(ARGV[2]))
local known, stored, rejected = ids_store_all()
if #known > 0 then
  ids_drop_all(stored or {})
  return {'KNOWN', known}
elseif rejected then
  return rejected
end
-- Redis rejects writes (out of memory, disk full, demoted master) at a script's first write only: the group applies whole or not.
local before = '-' .. string.format('%.0f', tonumber(number) - 1)
local left = {}
for slot = 1, slot_count do
  local head, payload = ARGV[slot + 3], ARGV[slot_count + slot + 3]
  local epoch = string.match(head, '^%d+')
  local id = epoch .. '-' .. number
  local appended
  if head == epoch .. before then
    appended = redis.pcall('XADD', KEYS[slot_count + slot], id, 'b', payload)
  else -- with the group before: a reader that misses it knows that it is lost
    appended = redis.pcall('XADD', KEYS[slot_count + slot], id, 'b', payload, 'p', head)
  end
  if type(appended) == 'table' then
    ids_drop_all(stored)
    return appended
  end
  left[2 * slot - 1], left[2 * slot] = KEYS[slot], id
end
redis.call('MSET', unpack(left))
ids_grow(stored)
return {'OK'}
