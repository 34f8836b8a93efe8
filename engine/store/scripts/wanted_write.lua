-- Store what the controller in control wants, unless what is stored was wanted later: a write may come as late as the network likes.
-- KEYS: meta   ARGV: field of the controller's epoch, epoch, field of what is wanted, value, when it was wanted in ms
-- Returns {'OK'}, {'FENCED', epoch in control}.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and tonumber(held) > tonumber(ARGV[2]) then
  return {'FENCED', held}
end
local stored = redis.call('HGET', KEYS[1], ARGV[3])
local at = stored and string.match(stored, '"at_ms":(%d+)')
if not at or tonumber(at) <= tonumber(ARGV[5]) then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
end
return {'OK'}
