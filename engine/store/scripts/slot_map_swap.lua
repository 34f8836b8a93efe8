-- Store a slot map in the place of another.
-- KEYS: slot map   ARGV: the map before ('' for none), the new one   Returns {'OK', 1 when the new one is stored, or was, else 0}. Idempotent.
local found = redis.call('GET', KEYS[1]) or ''
if found == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return {'OK', 1}
end
return {'OK', found == ARGV[2] and 1 or 0}
