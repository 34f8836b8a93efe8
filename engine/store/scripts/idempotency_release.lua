-- Give an id back that was taken for a timer which was then refused.   KEYS: idempotency key   ARGV: the value it was taken with
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return {'OK'}
