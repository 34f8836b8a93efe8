-- Store the slot map that names another shard as the owner of slots, unless the shard that hands them over has been replaced: its
-- successor has read the map, and owns them. With the map, the session events that the new owner is to write.
-- KEYS: epoch of a slot, slot map, handed events of the new owner, epochs of the other slots...
-- ARGV: epoch, the map before, the new one, its version, events or '', epochs of the other slots...
-- Returns {'OK', 1 when the new one is stored, or was, else 0}. Idempotent.
for i = 4, #KEYS do
  rejected = rejection(KEYS[i], ARGV[i + 2])
  if rejected then
    return rejected
  end
end
local found = redis.call('GET', KEYS[2]) or ''
if found == ARGV[2] then
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
  end
  redis.call('SET', KEYS[2], ARGV[3])
  return {'OK', 1}
end
return {'OK', found == ARGV[3] and 1 or 0}
