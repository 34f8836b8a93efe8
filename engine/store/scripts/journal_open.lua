-- Take a slot over: writes with any other epoch are rejected from now on; head and mark are reset to this epoch.
-- An incarnation that takes over again, to restore what storage has lost, is rejected when another one has taken over meanwhile.
-- KEYS: epoch, head, mark   ARGV: epoch, then when taking over again: the epoch held, epochs of attempts whose reply was lost...
-- Returns {'OK'} or {'FENCED', epoch}.
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
