-- Store what the controller in control wants.
-- KEYS: meta   ARGV: field of the controller's epoch, epoch, field of what is wanted, value   Returns {'OK'}, {'FENCED', epoch in control}.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and tonumber(held) > tonumber(ARGV[2]) then
  return {'FENCED', held}
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
return {'OK'}
