-- Delete the id of a broadcast that was stored for a timer which was then rejected.
-- KEYS: idempotency key   ARGV: the value it was stored with
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return {'OK'}
