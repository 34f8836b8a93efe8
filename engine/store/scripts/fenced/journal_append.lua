-- One group commit: skip a group that was applied, look up and store its ids, append.
-- KEYS: epoch, head, journal, then as accepted_ids.lua   ARGV: epoch, number, payload, ttl ms, expected head, then as accepted_ids.lua
-- head is "<epoch>-<number>" of the last append, with a suffix "u" when that was rolled back (undone).
-- Returns {"OK"}, {"LOST", what, found} or {"KNOWN", what `ids_known` returns}.
local head = redis.call('GET', KEYS[2]) or ''
local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)u?$')
if last and tonumber(last) >= tonumber(ARGV[2]) then
  return {'OK'} -- a repeat whose first reply was lost, or a delayed copy of a group that was rolled back
elseif head ~= ARGV[5] then
  return {'LOST', 'the last group', head}
end
ids_open(4, 6, tonumber(ARGV[4]))
local known, stored, rejected = ids_store_all()
if #known > 0 then
  ids_drop_all(stored or {})
  return {'KNOWN', known}
elseif rejected then
  return rejected
end
-- Redis rejects writes (out of memory, disk full, demoted master) at a script's first write only: the group applies whole or not.
local entry = {'b', ARGV[3]}
if head ~= ARGV[1] .. '-' .. string.format('%.0f', tonumber(ARGV[2]) - 1) then
  entry[3], entry[4] = 'p', head -- the group before: a reader that misses it knows that it is lost
end
local appended = redis.pcall('XADD', KEYS[3], ARGV[1] .. '-' .. ARGV[2], unpack(entry))
if type(appended) == 'table' then
  ids_drop_all(stored)
  return appended
end
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
ids_grow(stored)
return {'OK'}
