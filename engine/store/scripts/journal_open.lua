-- Take a shard over: from now on every other epoch is refused, and the head and the mark say what this one has written.
-- Who held it before and puts back what storage has lost is refused when it was taken from them meanwhile.
-- KEYS: epoch, head, mark   ARGV: epoch, then for who held it before: that epoch, epochs of attempts whose answer was lost...
local epoch = redis.call('GET', KEYS[1])
if epoch then
  local newest = tonumber(ARGV[2] or ARGV[1])
  for i = 3, #ARGV do
    if epoch == ARGV[i] then
      newest = tonumber(epoch)
    end
  end
  if tonumber(epoch) > newest then
    return {'FENCED', epoch}
  end
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[1] .. '-0')
redis.call('SET', KEYS[3], ARGV[1] .. '-0')
return {'OK'}
