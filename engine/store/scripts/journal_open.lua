-- Take a shard over: from now on every other epoch is refused, and the head and the mark say what this one has written.
-- KEYS: epoch, head, mark   ARGV: epoch
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return {'FENCED', epoch}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[1] .. '-0')
redis.call('SET', KEYS[3], ARGV[1] .. '-0')
return {'OK'}
