-- Add one batch of counter signals, unless it was added before.
-- KEYS: the writer's last number, then a hash per tenant   ARGV: number of the batch, ttl of that number in s, then for each
-- sum: index of the hash (from 1), the signal's name, amount
-- Returns {'OK'} or {'KNOWN'}.
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if last >= tonumber(ARGV[1]) then
  return {'KNOWN'}
end
for i = 3, #ARGV, 3 do
  redis.call('HINCRBY', KEYS[1 + tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2])
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return {'OK'}
