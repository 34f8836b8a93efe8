-- Store the slot map that names another shard as the owner of slots, unless the shard that hands them over has been replaced: its
-- successor has read the map, and owns them. With the map, the session events that the new owner is to write.
-- KEYS: shard epoch, slot map, handed events of the new owner   ARGV: epoch, the map before, the new one, its version, events or ''
-- Returns {'OK', 1 when the new one is stored, or was, else 0}. Idempotent.
local found = redis.call('GET', KEYS[2]) or ''
if found == ARGV[2] then
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
  end
  redis.call('SET', KEYS[2], ARGV[3])
  return {'OK', 1}
end
return {'OK', found == ARGV[3] and 1 or 0}
