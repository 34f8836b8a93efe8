-- The publishers of this group were told that nothing was accepted: make that true, and keep a late copy from applying.
-- KEYS: epoch, head, journal, idempotency keys...   ARGV: epoch, number
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then
  return {'FENCED', epoch or ''}
end
local id = ARGV[1] .. '-' .. ARGV[2]
if redis.call('XDEL', KEYS[3], id) == 1 then
  for i = 4, #KEYS do
    redis.call('DEL', KEYS[i])
  end
end
redis.call('SET', KEYS[2], id)
return {'OK'}
