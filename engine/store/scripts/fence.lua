-- Take over: set every key to the epoch ARGV[1], or none when any of them has a newer one.
-- Returns {'OK'} or {'FENCED', epoch}. Idempotent.
for i = 1, #KEYS do
  local epoch = redis.call('GET', KEYS[i])
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return {'FENCED', epoch}
  end
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1])
end
return {'OK'}
